"""Cross-entropy of an output head without all logits in memory at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forge.config.objectives.base import auto_chunk_size
from forge.data import IGNORE_INDEX
from forge.models.head import Head
from forge.objectives.cross_entropy import CrossEntropySums

OfChunk = tuple[Tensor, Tensor, Tensor, Tensor]


def chunked_cross_entropy(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    z_loss_weight: float = 0.0,
    chunk_size: int = 0,
    each: bool = False,
    weights: Tensor | None = None,
    smoothing: float = 0.0,
    compile_backend: str | None = None,
) -> CrossEntropySums:
    """Compute `cross_entropy(head.logits(hidden), targets)`, a chunk of tokens at a time.

    hidden: [..., dim], targets: [...] int64, -100 = masked. chunk_size: tokens a chunk, 0 =
    `auto_chunk_size`. With a head spread over ranks three numbers of each token are exchanged
    (arXiv:1909.08053, section 3), and the gradient of hidden is this rank's summand. Gradients are
    computed in the forward pass, while a chunk's logits exist. Matrix products are in hidden's
    type; the softmax and the sums in fp32 (fp64 for fp64 inputs). compile_backend: compiles the
    chunk, if ranks exchange nothing inside; null = not compiled. each, weights, smoothing: as of
    `cross_entropy`.
    """
    alone = type(head).total is Head.total
    body = _compiled(compile_backend) if compile_backend is not None and alone else _chunk
    rows, dim = head.weight.shape
    sums = _ChunkedCrossEntropy.apply(
        hidden.reshape(-1, dim),
        head.weight,
        head,
        targets.flatten(),
        None if weights is None else weights.flatten(),
        (z_loss_weight, smoothing),
        chunk_size or auto_chunk_size(vocab=rows, dim=dim),
        torch.is_grad_enabled(),
        each,
        body,
    )
    return CrossEntropySums(*sums)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        head: Head,
        targets: Tensor,
        weights: Tensor | None,
        terms: tuple[float, float],
        chunk_size: int,
        grad_enabled: bool,
        each: bool,
        body: Callable[..., OfChunk],
    ) -> tuple[Tensor, ...]:
        z_loss_weight, smoothing = terms
        want_hidden, want_weight = (grad_enabled and needed for needed in ctx.needs_input_grad[:2])
        sum_dtype = torch.promote_types(hidden.dtype, torch.float32)
        # In fp16 gradients would underflow before the loss scale reaches them.
        grad_dtype = sum_dtype if hidden.dtype == torch.float16 else hidden.dtype
        matrix = weight.to(hidden.dtype)
        grad_matrix = matrix.to(grad_dtype) if want_hidden else None
        grad_hidden = torch.empty_like(hidden, dtype=grad_dtype) if want_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if want_weight else None
        ce, z_loss, uniform = hidden.new_zeros(3, dtype=sum_dtype).unbind()

        parts = ce.new_empty(len(targets) if each else 0)
        out_dtype = grad_dtype if want_hidden or want_weight else None
        for start in range(0, len(targets), chunk_size):
            rows = slice(start, start + chunk_size)
            share = None if weights is None else weights[rows].to(sum_dtype)
            losses, log_partition, level, grad_logits = body(
                hidden[rows], matrix, targets[rows], share, head, terms, sum_dtype, out_dtype
            )
            losses, squares, spread = (
                values if share is None else values * share
                for values in (losses, log_partition.square(), log_partition - level)
            )
            ce += losses.sum()
            if each:
                parts[rows] = losses
            if z_loss_weight:
                z_loss += squares.sum()
            if smoothing:
                uniform += spread.sum()
            if grad_hidden is not None and grad_matrix is not None:
                grad_hidden[rows] = grad_logits @ grad_matrix
            if grad_weight is not None:
                add_product(grad_weight, grad_logits.T, hidden[rows].to(grad_dtype))
            del grad_logits  # else held in memory beside the next chunk's product

        if grad_weight is not None:
            grad_weight = grad_weight.to(torch.promote_types(grad_dtype, weight.dtype))
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(ce, z_loss, parts, uniform)
        total = (1 - smoothing) * ce + smoothing * uniform + z_loss_weight * z_loss
        return total, ce, z_loss, parts, uniform

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        # With a dimension the factor is not rounded to the gradient's format before the product.
        factor = grad_total.view(1, 1)
        # In place unless the graph is kept for another backward.
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()  # type: ignore
        grads = (
            None if grad is None else torch.mul(grad, factor, out=None if keeps else grad).to(dtype)
            for grad, dtype in saved
        )
        return *grads, None, None, None, None, None, None, None, None


def _chunk(
    states: Tensor,
    matrix: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    head: Head,
    terms: tuple[float, float],
    sum_dtype: torch.dtype,
    grad_dtype: torch.dtype | None,
) -> OfChunk:
    """Compute a chunk of tokens, [tokens, dim]: cross-entropy, log-partition and mean logit of each
    token, 0 where masked, and the gradient of logits, [tokens, vocab], in grad_dtype; null = none.
    Means are computed only for smoothed labels. terms: z_loss_weight, smoothing.
    """
    z_loss_weight, smoothing = terms
    logits = head.shaped((states @ matrix.T).to(sum_dtype))
    slope = head.slope(logits) if grad_dtype is not None else 1.0  # logits are changed in place
    unmasked = targets != IGNORE_INDEX
    labels = targets - head.first
    is_local = unmasked & (labels >= 0) & (labels < len(matrix))
    labels = labels.where(is_local, 0).unsqueeze(1)
    target_logits = head.total(logits.gather(1, labels).squeeze(1).where(is_local, 0))

    level = torch.zeros_like(target_logits)
    if smoothing:
        level = (head.total(logits.sum(1)) / head.vocab_size).where(unmasked, 0)
    peaks = head.largest(logits.amax(1, keepdim=True))
    partition = head.total(logits.sub_(peaks).exp_().sum(1))
    log_partition = partition.log() + peaks.squeeze(1)
    losses = (log_partition - target_logits).where(unmasked, 0)
    if grad_dtype is None:
        return losses, log_partition.where(unmasked, 0), level, logits
    share = unmasked.to(sum_dtype) if weights is None else weights.where(unmasked, 0)
    scale = share * ((1 + 2 * z_loss_weight * log_partition) / partition).where(unmasked, 0)
    grad_logits = logits.mul_(scale.unsqueeze(1))
    if smoothing:
        grad_logits.sub_((share * (smoothing / head.vocab_size)).unsqueeze(1))
    of_label = ((1 - smoothing) * share * is_local).unsqueeze(1)
    if torch.compiler.is_compiling():  # in one pass with the rest; a scatter needs all in memory
        ids = torch.arange(logits.shape[1], device=logits.device)
        grad_logits = grad_logits - (ids == labels) * of_label
    else:
        grad_logits.scatter_add_(1, labels, -of_label)
    grad_logits = grad_logits.mul_(slope).to(grad_dtype)
    return losses, log_partition.where(unmasked, 0), level, grad_logits


@functools.cache
def _compiled(backend: str) -> Callable[..., OfChunk]:
    """Compile `_chunk` to few kernels between the products, for the shape shared by all chunks but
    the last.
    """
    return torch.compile(_chunk, backend=backend, fullgraph=True, dynamic=False)


def add_product(accumulator: Tensor, left: Tensor, right: Tensor) -> None:
    """Do accumulator += left @ right in place, without a temporary for equal types, or on a GPU,
    with fp32 results of products in 16 bits.
    """
    if accumulator.dtype == left.dtype:
        accumulator.addmm_(left, right)
    elif accumulator.is_cuda:
        torch.ops.aten.addmm.dtype_out(accumulator, left, right, accumulator.dtype, out=accumulator)
    else:
        accumulator += left @ right
