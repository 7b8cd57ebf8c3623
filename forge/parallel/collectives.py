"""Collectives that gradients flow through, on the plain local tensors of each rank.

Each says what it does backward: which one is right follows from whether the ranks go on with the
result in different ways, so that their gradients must be added up, or all in the same way, so that
each has the whole gradient already. They are made of the operators under torch's functional
collectives, whose names are the same since torch 2.3, and which torch.compile traces without a
break. All ranks of a group call the same ones in the same order, with sizes that fit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

# registers what the compiler needs to trace the operators
import torch.distributed._functional_collectives
from torch import Tensor

ops = torch.ops._c10d_functional


def gather(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """All ranks' parts, one after another along `dim`, for ranks that use them differently;
    backward: reduce-scatter.
    """
    return _Gather.apply(x, dim % x.dim(), group.group_name, group.size())


def scatter_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's part along `dim` of the sum over ranks (reduce-scatter); backward: all-gather.
    `dim` is a multiple of their number.
    """
    return _ScatterSum.apply(x, dim % x.dim(), group.group_name, group.size())


def sum_over(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks (all-reduce), for ranks that use it in the same way; backward: nothing to
    do.
    """
    return _SumOver.apply(x, group.group_name)


def sum_gradient(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, which is the same on all ranks, for ranks that use it differently; backward: the sum over
    ranks (all-reduce).
    """
    return _SumGradient.apply(x, group.group_name)


def gather_equal(x: Tensor, dim: int, group: dist.ProcessGroup, size: int | None = None) -> Tensor:
    """All ranks' parts along `dim`, for ranks that use them in the same way; backward: this rank's
    part of the gradient.

    size: the length of the whole, where the parts are those of torch.chunk, of which the last ones
    may be shorter or empty; null = they are equal.
    """
    dim, ranks, length = dim % x.dim(), group.size(), x.shape[dim % x.dim()]
    size = length * ranks if size is None else size
    chunk = -(-size // ranks)
    start = min(group.rank() * chunk, size)
    assert length == min(chunk, size - start), (tuple(x.shape), dim, group.rank(), size)
    if length < chunk:
        x = torch.cat((x, x.new_zeros((*x.shape[:dim], chunk - length, *x.shape[dim + 1 :]))), dim)
    # Short parts are the last ones, so that what they were filled up with lies together at the end.
    return _GatherEqual.apply(x, dim, group.group_name, ranks, group.rank()).narrow(dim, 0, size)


def exchange(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Cut x along `split`, a part for each rank, and put what comes from them together along `join`
    (all-to-all); backward: the reverse.
    """
    return _Exchange.apply(x, split % x.dim(), join % x.dim(), group.group_name, group.size())


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """counts: [ranks * n], n for each rank -> [ranks * n], n from each (all-to-all); without
    gradient.
    """
    each = [len(counts) // group.size()] * group.size()
    return ops.wait_tensor(ops.all_to_all_single(counts.contiguous(), each, each, group.group_name))


def exchange_rows(
    x: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
) -> Tensor:
    """x: [sum(send), dim], so many rows for each rank, or none -> [sum(receive), dim] (all-to-all);
    backward: the reverse.
    """
    return _ExchangeRows.apply(x, send, receive, group.group_name)


def _not_a_view(x: Tensor) -> Tensor:
    """x, but no view in autograd's eyes: fully_shard warns of a module that returns one."""
    return torch.ops.aten._unsafe_view(x, x.shape)


def _all_gather(x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
    parts = ops.wait_tensor(ops.all_gather_into_tensor(x.contiguous(), ranks, group))
    return (
        _not_a_view(parts.unflatten(0, (ranks, -1)).movedim(0, dim).flatten(dim, dim + 1))
        if dim
        else parts
    )


def _reduce_scatter(x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
    assert x.shape[dim] % ranks == 0, (tuple(x.shape), dim, ranks)
    parts = x.unflatten(dim, (ranks, -1)).movedim(dim, 0).flatten(0, 1) if dim else x
    return ops.wait_tensor(ops.reduce_scatter_tensor(parts.contiguous(), "sum", ranks, group))


def _all_reduce(x: Tensor, group: str) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x.contiguous(), "sum", group))


def _all_to_all(x: Tensor, split: int, join: int, group: str, ranks: int) -> Tensor:
    assert x.shape[split] % ranks == 0, (tuple(x.shape), split, ranks)
    parts = x.unflatten(split, (ranks, -1)).movedim(split, 0).contiguous()
    ones = [1] * ranks
    return (
        ops.wait_tensor(ops.all_to_all_single(parts, ones, ones, group))
        .movedim(0, join)
        .flatten(join, join + 1)
    )


def _all_to_all_rows(x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
    return ops.wait_tensor(ops.all_to_all_single(x.contiguous(), receive, send, group))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
        ctx.dim, ctx.group, ctx.ranks = dim, group, ranks
        return _all_gather(x, dim, group, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _reduce_scatter(gradient, ctx.dim, ctx.group, ctx.ranks), None, None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
        ctx.dim, ctx.group, ctx.ranks = dim, group, ranks
        return _reduce_scatter(x, dim, group, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _all_gather(gradient, ctx.dim, ctx.group, ctx.ranks), None, None, None


class _SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return _all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient, None


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return _not_a_view(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _all_reduce(gradient, ctx.group), None


class _GatherEqual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: str, ranks: int, rank: int) -> Tensor:
        ctx.dim, ctx.ranks, ctx.rank = dim, ranks, rank
        return _all_gather(x, dim, group, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return gradient.chunk(ctx.ranks, ctx.dim)[ctx.rank].contiguous(), None, None, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, split: int, join: int, group: str, ranks: int) -> Tensor:
        ctx.split, ctx.join, ctx.group, ctx.ranks = split, join, group, ranks
        return _all_to_all(x, split, join, group, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (
            _all_to_all(gradient, ctx.join, ctx.split, ctx.group, ctx.ranks),
            None,
            None,
            None,
            None,
        )


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _all_to_all_rows(x, send, receive, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return _all_to_all_rows(gradient, ctx.receive, ctx.send, ctx.group), None, None, None
