"""The loss of a student against a teacher, without all logits of either at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from forge.config.objectives.base import auto_chunk_size
from forge.data import IGNORE_INDEX
from forge.models.head import Head
from forge.objectives.chunked_cross_entropy import add_product
from forge.objectives.divergences import LOWEST, divergences

HARD = "hard"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of a loss: hard * cross-entropy + temperature^2 * the weighted divergences.

    soft: weights of divergences by name. Cross-entropy is summed even without a weight. The square
    keeps the gradient's size (arXiv:1503.02531, section 2).
    """

    hard: float
    soft: dict[str, float]
    temperature: float = 1.0
    beta: float = 0.5

    @property
    def names(self) -> tuple[str, ...]:
        return HARD, *self.soft


class OnlineTeacher(NamedTuple):
    """A model's hidden states, [tokens, dim], and its head, with rows on the ranks of the
    student's.
    """

    hidden: Tensor
    head: Head


class StoredTeacher(NamedTuple):
    """The likeliest tokens of a teacher, and how the others count.

    ids: [tokens, k]. logps: [tokens, k + 1], the last one of all other tokens together. tail:
    bucket = as one outcome, a lower bound of each divergence; zero = as impossible; renormalise =
    neither model's.
    """

    ids: Tensor
    logps: Tensor
    tail: str


Teacher = OnlineTeacher | StoredTeacher | None
"""None where no term reads a teacher."""


def distillation_terms(
    hidden: Tensor,
    head: Head,
    teacher: Teacher,
    targets: Tensor,
    terms: Terms,
    *,
    chunk_size: int = 0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss summed over targets, a scalar with a graph, and the sum of each term without its
    weight.

    hidden: [..., dim]. targets: [...] int64, -100 = masked. Formats, chunks and a head spread over
    ranks are as in `chunked_cross_entropy`; the teacher has no gradient.
    """
    rows, dim = head.weight.shape
    size = chunk_size or max(auto_chunk_size(vocab=rows, dim=dim) // 2, 1)
    total, *sums = _Distilled.apply(
        hidden.reshape(-1, dim), head.weight, head, teacher, targets.flatten(), terms, size
    )
    return total, dict(zip(terms.names, sums, strict=True))


class _Distilled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        head: Head,
        teacher: Teacher,
        targets: Tensor,
        terms: Terms,
        size: int,
    ) -> tuple[Tensor, ...]:
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # In fp16 gradients would underflow: the loss is divided by the targets of the step.
        grad_dtype = dtype if hidden.dtype == torch.float16 else hidden.dtype
        matrix = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden, dtype=grad_dtype) if want_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if want_weight else None
        sums = hidden.new_zeros(len(terms.names), dtype=dtype)
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            logits = head.shaped((hidden[rows] @ matrix.T).to(dtype))
            values, grad = _chunk(logits, head, _part(teacher, rows), targets[rows], terms)
            sums += values
            grad = grad.mul_(head.slope(logits)).to(grad_dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ matrix.to(grad_dtype)
            if grad_weight is not None:
                add_product(grad_weight, grad.T, hidden[rows].to(grad_dtype))
            del grad, logits
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.save_for_backward(grad_hidden, grad_weight)
        soft = (weight * terms.temperature**2 for weight in terms.soft.values())
        total = (sums * sums.new_tensor([terms.hard, *soft])).sum()
        parts = [part.clone() for part in sums.unbind()]
        ctx.mark_non_differentiable(*parts)
        return total, *parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        factor = grad_total.view(1, 1)
        grads = (None if grad is None else (grad * factor).to(dtype) for grad, dtype in saved)
        return *grads, None, None, None, None, None


def _part(teacher: Teacher, rows: slice) -> Teacher:
    if teacher is None:
        return None
    if isinstance(teacher, OnlineTeacher):
        return teacher._replace(hidden=teacher.hidden[rows])
    return teacher._replace(ids=teacher.ids[rows], logps=teacher.logps[rows])


def _chunk(
    logits: Tensor,
    head: Head,
    teacher: Teacher,
    targets: Tensor,
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """The sum of each term over a chunk, and the gradient of its loss by the logits."""
    counted = (targets != IGNORE_INDEX).to(logits.dtype).unsqueeze(1)
    labels = (targets - head.first).unsqueeze(1)
    is_local = (labels >= 0) & (labels < logits.shape[1]) & (counted > 0)
    labels = labels.where(is_local, 0)
    log_q = log_softmax(logits, head)
    values = [-head.total(log_q.gather(1, labels).where(is_local, 0)) * counted]
    grad = torch.zeros_like(logits)
    if terms.hard:
        grad = log_q.exp_().scatter_add_(1, labels, -is_local.to(logits.dtype)).mul_(terms.hard)
    if terms.soft:
        against = _online if isinstance(teacher, OnlineTeacher) else _stored
        of_terms, slope = against(logits / terms.temperature, head, teacher, terms)  # type: ignore[arg-type]
        values += [value.unsqueeze(1) * counted for value in of_terms.values()]
        # temperature^2 of the loss, 1 / temperature of the logits
        grad.add_(slope, alpha=terms.temperature)
    return torch.cat(values, 1).sum(0), grad.mul_(counted)


def _online(
    logits: Tensor, head: Head, teacher: OnlineTeacher, terms: Terms
) -> tuple[dict[str, Tensor], Tensor]:
    """Divergences from a model on the rows that both vocabularies have, and the slope by logits."""
    matrix = teacher.head.weight.to(teacher.hidden.dtype)
    theirs = teacher.head.shaped((teacher.hidden @ matrix.T).to(logits.dtype))
    if head.vocab_size != teacher.head.vocab_size and type(head).total is not Head.total:
        sizes = f"the student has {head.vocab_size}, the teacher {teacher.head.vocab_size}"
        message = "over parallel.tp both vocabularies have equally many rows"
        raise ValueError(f"model.vocab_size: {message}; {sizes}: see model.pad_vocab_to")
    shared = min(logits.shape[1], theirs.shape[1])  # one tokenizer, but rows beyond its ids
    log_p = log_softmax(theirs[:, :shared] / terms.temperature, head)
    log_q = log_softmax(logits[:, :shared], head)
    result = divergences(log_p, log_q, terms.soft, beta=terms.beta, total=head.total)
    slope = torch.zeros_like(logits)
    slope[:, :shared] = result.slope - log_q.exp() * result.level
    return result.values, slope


def _stored(
    logits: Tensor, head: Head, teacher: StoredTeacher, terms: Terms
) -> tuple[dict[str, Tensor], Tensor]:
    """Divergences from stored probabilities, and the slope by logits.

    Outcomes are the k tokens and, with a tail, all other tokens as one.
    """
    log_q = log_softmax(logits, head)
    width = logits.shape[1]
    columns = teacher.ids.long() - head.first
    columns = columns.where((columns >= 0) & (columns < width), width)  # of other ranks: beyond
    padded = torch.nn.functional.pad(log_q, (0, 1))
    log_q_k = head.total(padded.gather(1, columns))
    log_p = teacher.logps.to(logits.dtype)
    if teacher.tail == "renormalise":
        log_p, log_q_k = log_p[:, :-1].log_softmax(1), log_q_k.log_softmax(1)
        result = divergences(log_p, log_q_k, terms.soft, beta=terms.beta)
        slope = torch.zeros_like(padded)
        slope.scatter_(1, columns, result.slope - log_q_k.exp() * result.level)
        return result.values, slope[:, :-1]
    rest = padded.scatter(1, columns, LOWEST)[:, :-1]
    log_q_tail = _log_sum(rest, head).clamp(min=LOWEST)
    if teacher.tail == "zero":
        log_p = torch.nn.functional.pad(log_p[:, :-1].log_softmax(1), (0, 1), value=LOWEST)
    else:
        log_p = log_p.log_softmax(1).clamp(min=LOWEST)
    outcomes = torch.cat([log_q_k, log_q_tail], 1)
    result = divergences(log_p, outcomes, terms.soft, beta=terms.beta)
    # A token of the tail has its share of the tail's slope.
    share = (rest - log_q_tail).exp_()
    slope = share * result.slope[:, -1:] - rest.exp() * result.level
    slope = torch.nn.functional.pad(slope, (0, 1))
    of_k = result.slope[:, :-1] - log_q_k.exp() * result.level
    return result.values, slope.scatter_(1, columns, of_k)[:, :-1]


def log_softmax(logits: Tensor, head: Head) -> Tensor:
    """Log-probabilities over the columns of all ranks."""
    return logits - _log_sum(logits, head)


def _log_sum(logits: Tensor, head: Head) -> Tensor:
    """Logarithm of the summed exponentials over the columns of all ranks, [tokens, 1]."""
    peaks = head.largest(logits.amax(1, keepdim=True))
    return head.total((logits - peaks).exp_().sum(1, keepdim=True)).log_() + peaks
