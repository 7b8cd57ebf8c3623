"""Collectives that gradients flow through, on the plain local tensors of each rank.

Which one is right follows from backward: ranks that use the result differently each have a summand
of its gradient; ranks that use it alike each have the whole gradient. torch.compile traces them
without a break. All ranks of a group call the same ones in the same order, with sizes that fit.
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
    """All ranks' parts along `dim`, for ranks that use them differently; back: reduce-scatter."""
    return _Pair.apply(x, "gather", dim % x.dim(), group.group_name, group.size())


def scatter_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's part along `dim` of the sum over ranks (reduce-scatter); backward: all-gather."""
    return _Pair.apply(x, "scatter_sum", dim % x.dim(), group.group_name, group.size())


def sum_over(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks (all-reduce), for ranks that use it alike; backward: identity."""
    return _Pair.apply(x, "sum_over", group.group_name)


def sum_gradient(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, equal on all ranks, for ranks that use it differently; backward: all-reduce."""
    return _Pair.apply(x, "sum_gradient", group.group_name)


def once(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, equal on all ranks, of the first and zeros of others, for ranks whose sum is used alike;
    backward: identity.
    """
    return _Pair.apply(x, "once", group.rank())


def gather_equal(x: Tensor, dim: int, group: dist.ProcessGroup, size: int | None = None) -> Tensor:
    """All ranks' parts along `dim`, for ranks that use them alike; backward: this rank's part.

    size: the length of the whole if the parts are those of torch.chunk, of which the last ones may
    be shorter or empty; null = equal parts.
    """
    dim, ranks, length = dim % x.dim(), group.size(), x.shape[dim % x.dim()]
    size = length * ranks if size is None else size
    chunk = -(-size // ranks)
    start = min(group.rank() * chunk, size)
    assert length == min(chunk, size - start), (tuple(x.shape), dim, group.rank(), size)
    if length < chunk:
        x = torch.cat((x, x.new_zeros((*x.shape[:dim], chunk - length, *x.shape[dim + 1 :]))), dim)
    # Short parts are the last ones, so their padding lies together at the end.
    whole = _Pair.apply(x, "gather_equal", dim, group.group_name, ranks, group.rank())
    return whole.narrow(dim, 0, size)


def exchange(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Part i along `split` goes to rank i; what comes is joined along `join` (all-to-all)."""
    split, join = split % x.dim(), join % x.dim()
    return _Pair.apply(x, "exchange", split, join, group.group_name, group.size())


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """counts: [ranks * n], n for each rank -> [ranks * n], n from each (all-to-all)."""
    each = [len(counts) // group.size()] * group.size()
    return _all_to_all_rows(counts, each, each, group.group_name)


def exchange_rows(
    x: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
) -> Tensor:
    """x: [sum(send), dim], `send[i]` rows for rank i -> [sum(receive), dim] (all-to-all)."""
    return _Pair.apply(x, "exchange_rows", send, receive, group.group_name)


class _Pair(torch.autograd.Function):
    """A collective, by its name in PAIRS, and the one that takes the gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, *args: Any) -> Tensor:
        ctx.name, ctx.args = name, args
        return PAIRS[name][0](x, *args)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return PAIRS[ctx.name][1](gradient, *ctx.args), None, *(None for _ in ctx.args)


def _not_a_view(x: Tensor, group: str = "") -> Tensor:
    """x as a new tensor to autograd: fully_shard warns of a module that returns a view."""
    return torch.ops.aten._unsafe_view(x, x.shape)


def _all_gather(x: Tensor, dim: int, group: str, ranks: int, rank: int = 0) -> Tensor:
    parts = ops.wait_tensor(ops.all_gather_into_tensor(x.contiguous(), ranks, group))
    if dim == 0:
        return parts
    return _not_a_view(parts.unflatten(0, (ranks, -1)).movedim(0, dim).flatten(dim, dim + 1))


def _own_chunk(x: Tensor, dim: int, group: str, ranks: int, rank: int) -> Tensor:
    return x.chunk(ranks, dim)[rank].contiguous()


def _reduce_scatter(x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
    assert x.shape[dim] % ranks == 0, (tuple(x.shape), dim, ranks)
    parts = x.unflatten(dim, (ranks, -1)).movedim(dim, 0).flatten(0, 1) if dim else x
    return ops.wait_tensor(ops.reduce_scatter_tensor(parts.contiguous(), "sum", ranks, group))


def _all_reduce(x: Tensor, group: str) -> Tensor:
    return ops.wait_tensor(ops.all_reduce(x.contiguous(), "sum", group))


def _of_first(x: Tensor, rank: int) -> Tensor:
    return torch.zeros_like(x) if rank else x.clone()


def _identity(x: Tensor, *_: Any) -> Tensor:
    return x


def _all_to_all(x: Tensor, split: int, join: int, group: str, ranks: int) -> Tensor:
    assert x.shape[split] % ranks == 0, (tuple(x.shape), split, ranks)
    parts = x.unflatten(split, (ranks, -1)).movedim(split, 0)
    ones = [1] * ranks
    return _all_to_all_rows(parts, ones, ones, group).movedim(0, join).flatten(join, join + 1)


def _all_to_all_back(x: Tensor, split: int, join: int, group: str, ranks: int) -> Tensor:
    return _all_to_all(x, join, split, group, ranks)


def _all_to_all_rows(x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
    return ops.wait_tensor(ops.all_to_all_single(x.contiguous(), receive, send, group))


def _all_to_all_rows_back(x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
    return _all_to_all_rows(x, receive, send, group)


PAIRS = {
    "gather": (_all_gather, _reduce_scatter),
    "scatter_sum": (_reduce_scatter, _all_gather),
    "sum_over": (_all_reduce, _identity),
    "sum_gradient": (_not_a_view, _all_reduce),
    "once": (_of_first, _identity),
    "gather_equal": (_all_gather, _own_chunk),
    "exchange": (_all_to_all, _all_to_all_back),
    "exchange_rows": (_all_to_all_rows, _all_to_all_rows_back),
}
"""By name: forward and backward, which take the same arguments."""
