"""Tokens to experts and back: sorted by expert, or in a fixed number of rows for each expert."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """The assignments of tokens to experts, sorted by expert, then by token.

    n = tokens * top_k assignments; number i is of token i // top_k. A scope is a range of counting:
    each sequence, or all sequences. by_expert: [n], the assignment at each place of the sorted
    order. place: [n], the place of each assignment. expert, scope, rank: [n], in sorted order; rank
    is the number of earlier assignments of the same expert and scope. counts, starts: [scopes,
    experts]; starts is the place of the first assignment. of_sequences: [sequences, experts],
    counts.
    """

    by_expert: Tensor
    place: Tensor
    expert: Tensor
    scope: Tensor
    rank: Tensor
    counts: Tensor
    starts: Tensor
    of_sequences: Tensor


def sort_assignments(
    experts: Tensor, num_experts: int, sequences: int, *, per_sequence: bool
) -> Order:
    """Sort the assignments of experts: [tokens, top_k], of `sequences` equal sequences.

    per_sequence: each sequence is a scope; else all sequences are a single scope.
    """
    chosen = experts.flatten()
    n, device = len(chosen), chosen.device
    by_expert = chosen.argsort(stable=True)
    everywhere = torch.arange(n, device=device)
    position = torch.empty_like(by_expert).scatter_(0, by_expert, everywhere)
    expert, sequence = chosen[by_expert], by_expert // (n // sequences)
    # The sort is stable, so an expert's assignments from one sequence are a run.
    run = expert * sequences + sequence
    edges = torch.searchsorted(run, torch.arange(num_experts * sequences + 1, device=device))
    of_sequences = edges.diff().view(num_experts, sequences).t()
    starts = edges[:-1].view(num_experts, sequences).t()
    if per_sequence:
        scope, first, counts = sequence, edges[run], of_sequences
    else:
        starts, scope = starts[:1], torch.zeros_like(sequence)
        first, counts = starts[0, expert], of_sequences.sum(0, keepdim=True)
    rank = everywhere - first
    return Order(by_expert, position, expert, scope, rank, counts, starts, of_sequences)


def capacity(factor: float, tokens: int, top_k: int, num_experts: int) -> int:
    """ceil(factor * tokens * top_k / experts) assignments, at most `tokens` (GShard,
    arXiv:2006.16668, section 2.2, of all choices together).
    """
    return min(math.ceil(factor * tokens * top_k / num_experts), tokens)


def spread_tokens(x: Tensor, found: Order) -> Tensor:
    """Copy x: [tokens, dim] -> [n, dim], for each assignment, sorted by expert."""
    return _Spread.apply(x, found.by_expert, found.place)


def rearrange(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """Put the rows of x: [n, dim] in the order of index: [n], a permutation. back: its inverse."""
    return _Move.apply(x, index, None, back, None)


class Room(NamedTuple):
    """The rows of the assignments, with equally many rows for each expert and scope.

    source: [experts * scopes * rows], the assignment in a row, if filled. slot: [n], the row of an
    assignment, if kept.
    """

    source: Tensor
    filled: Tensor
    slot: Tensor
    kept: Tensor


def assign_rows(found: Order, rows: int, left: Tensor) -> Room:
    """Give assignments their rows; left: [scopes, experts], number of rows an expert may fill."""
    (scopes, _), n = found.counts.shape, len(found.rank)
    row = torch.arange(rows, device=left.device)
    source = found.starts.t().unsqueeze(-1) + row
    filled = row < torch.minimum(found.counts, left).t().unsqueeze(-1)
    has_row = found.rank < left[found.scope, found.expert]
    slot = (found.expert * scopes + found.scope) * rows + found.rank.clamp(max=rows - 1)
    # Clamped: a row without an assignment must still index, and is masked by `filled`.
    return Room(source.flatten().clamp(max=n - 1), filled.flatten(), slot, has_row)


def fill_rows(x: Tensor, rows: Room) -> Tensor:
    """Move x: [n, dim], sorted by expert, into rows -> [rows, dim], 0 in empty rows."""
    return _Move.apply(x, rows.source, rows.filled, rows.slot, rows.kept)


def empty(y: Tensor, rows: Room) -> Tensor:
    """Move y: [rows, dim] back to assignments -> [n, dim], 0 for assignments without a row."""
    return _Move.apply(y, rows.slot, rows.kept, rows.source, rows.filled)


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """x: [n, dim] unchanged, the gradient multiplied by factor: [n]."""
    return _ScaleGradient.apply(x, factor)


class _Spread(torch.autograd.Function):
    """Copies by indexing, with a gradient that sums a token's copies in a fixed order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by_expert: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.copies = len(place) // len(x)
        return x[by_expert // ctx.copies]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (position,) = ctx.saved_tensors
        return grad[position].unflatten(0, (-1, ctx.copies)).sum(1), None, None


class _Move(torch.autograd.Function):
    """Moves rows, and gradients back, both by indexing; 0 where `valid` is false."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        index: Tensor,
        valid: Tensor | None,
        inverse: Tensor,
        inverse_valid: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(inverse, inverse_valid)
        return _look_up(x, index, valid)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _look_up(grad, *ctx.saved_tensors), None, None, None, None


def _look_up(x: Tensor, index: Tensor, valid: Tensor | None) -> Tensor:
    return x[index] if valid is None else x[index].where(valid.unsqueeze(1), 0)


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = ctx.saved_tensors
        return grad * factor.unsqueeze(1).to(grad.dtype), None
