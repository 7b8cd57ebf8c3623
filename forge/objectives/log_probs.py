"""Log-probabilities of targets, differentiable, without all logits at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forge.config.objectives.base import auto_chunk_size
from forge.data import IGNORE_INDEX
from forge.models.head import Head
from forge.objectives.chunked_cross_entropy import add_product

LEAST = -1e4
"""In place of the logarithm of 0, whose product with 0 is NaN."""


def log_probs(hidden: Tensor, head: Head, targets: Tensor, *, chunk_size: int = 0) -> Tensor:
    """The log-probability of each target, 0 where masked: [...], in fp32 (fp64 of fp64 inputs).

    hidden: [..., dim], targets: [...] int64, -100 = masked. chunk_size: tokens with logits in
    memory at a time, computed again in the backward pass; 0 = `auto_chunk_size`. With a head spread
    over ranks three numbers of each token are exchanged, and the gradient of hidden is this rank's
    summand, as in `chunked_cross_entropy`.
    """
    return _applied(hidden, head, targets, chunk_size, Asked())[0]


def log_probs_and_entropies(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 0,
    support: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `log_probs` of logits divided by a temperature; and the entropy of each distribution, in
    nats, 0 where masked.

    support: [..., candidates], ids of the tokens that each distribution is over, the target among
    them, with -1 in places without one; None = all tokens.
    """
    asked = Asked(temperature=temperature, entropy=True)
    return _applied(hidden, head, targets, chunk_size, asked, support)


class Asked(NamedTuple):
    """Temperature of the logits, and whether entropies are asked for."""

    temperature: float = 1.0
    entropy: bool = False

    def tempered(self, logits: Tensor) -> Tensor:
        return logits if self.temperature == 1 else logits.div_(self.temperature)


def _applied(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    chunk_size: int,
    asked: Asked,
    support: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    rows, dim = head.weight.shape
    size = chunk_size or auto_chunk_size(vocab=rows, dim=dim)
    flat = hidden.reshape(-1, dim)
    support = None if support is None else support.reshape(-1, support.shape[-1])
    results = _LogProbs.apply(flat, head.weight, head, targets.flatten(), size, asked, support)
    return results[0].view_as(targets), results[1].view_as(targets)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        head: Head,
        targets: Tensor,
        size: int,
        asked: Asked,
        support: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        matrix = weight.to(hidden.dtype)
        logps = hidden.new_empty(len(targets), dtype=dtype)
        log_partitions, entropies = torch.empty_like(logps), torch.zeros_like(logps)
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            logits = asked.tempered(head.shaped((hidden[rows] @ matrix.T).to(dtype)))
            labels, is_local = _labels(targets[rows], head, len(matrix))
            target_logits = head.total(logits.gather(1, labels).where(is_local, 0)).squeeze(1)
            logits = logits if support is None else _among(logits, support[rows], head)[0]
            peaks = head.largest(logits.amax(1, keepdim=True))
            shifted = logits.sub_(peaks)
            masses = shifted.exp() if asked.entropy else shifted.exp_()
            partition = head.total(masses.sum(1))
            log_partitions[rows] = partition.log() + peaks.squeeze(1)
            logps[rows] = target_logits - log_partitions[rows]
            if asked.entropy:
                # Of a token that is left out the mass is 0, and the logarithm infinite.
                terms = masses.mul_(shifted if support is None else shifted.clamp_(min=LEAST))
                mean = head.total(terms.sum(1)) / partition
                entropies[rows] = partition.log() - mean
        is_masked = targets == IGNORE_INDEX
        ctx.head, ctx.size, ctx.asked = head, size, asked
        entropies.masked_fill_(is_masked, 0)
        ctx.save_for_backward(hidden, weight, targets, log_partitions, entropies, support)
        return logps.masked_fill_(is_masked, 0), entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, of_entropies: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, log_partitions, entropies, support = ctx.saved_tensors
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        dtype, head, asked = log_partitions.dtype, ctx.head, ctx.asked
        # In fp16 gradients would underflow: the loss is divided by the pairs of the step.
        grad_dtype = dtype if hidden.dtype == torch.float16 else hidden.dtype
        is_masked = targets == IGNORE_INDEX
        matrix, factors = weight.to(hidden.dtype), grads.masked_fill(is_masked, 0)
        of_entropies = of_entropies.masked_fill(is_masked, 0)
        grad_hidden = torch.empty_like(hidden, dtype=grad_dtype) if want_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if want_weight else None
        for start in range(0, len(targets), ctx.size):
            rows = slice(start, start + ctx.size)
            logits = head.shaped((hidden[rows] @ matrix.T).to(dtype))
            slope = head.slope(logits) / asked.temperature
            labels, is_local = _labels(targets[rows], head, len(matrix))
            scale = factors[rows].unsqueeze(1)
            logits = asked.tempered(logits).sub_(log_partitions[rows].unsqueeze(1))
            if support is not None:
                among, places = _among(logits, support[rows], head)
                # Nothing of what is left out: its probability is exp(-inf).
                logits = torch.full_like(logits, -torch.inf)
                logits = logits.scatter_reduce_(1, places, among, "amax")
            if asked.entropy:
                # d H / d logit = -p (log p + H)
                finite = logits if support is None else logits.clamp(min=LEAST)
                surprise = (finite + entropies[rows].unsqueeze(1)) * of_entropies[rows].unsqueeze(1)
                grad = logits.exp_().mul_(-scale - surprise)
            else:
                grad = logits.exp_().mul_(-scale)
            grad = grad.scatter_add_(1, labels, scale.where(is_local, 0)).mul_(slope).to(grad_dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ matrix.to(grad_dtype)
            if grad_weight is not None:
                add_product(grad_weight, grad.T, hidden[rows].to(grad_dtype))
        if grad_hidden is not None:
            grad_hidden = grad_hidden.to(hidden.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


def _among(logits: Tensor, support: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """The logits of the tokens `support` and their columns, [tokens, candidates]; -inf for tokens
    of other ranks, and for -1.
    """
    places = support - head.first
    is_local = (support >= 0) & (places >= 0) & (places < logits.shape[1])
    places = places.where(is_local, 0)
    return logits.gather(1, places).masked_fill(~is_local, -torch.inf), places


def _labels(targets: Tensor, head: Head, rows: int) -> tuple[Tensor, Tensor]:
    """The row of each target in this rank's weight, 0 for a target of another rank, and whether the
    target is of this rank: [tokens, 1] each.
    """
    labels = targets - head.first
    is_local = (targets != IGNORE_INDEX) & (labels >= 0) & (labels < rows)
    return labels.where(is_local, 0).unsqueeze(1), is_local.unsqueeze(1)
