"""Collectives that gradients flow through, on the plain local tensors of each rank.

The right collective follows from backward: with different uses of the result each rank has a
summand of the gradient; with equal uses each rank has the whole gradient. torch.compile traces
these collectives without a break. All ranks of a group call the same collectives in the same order,
with fitting sizes.
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
    """All ranks' parts along `dim`, for different uses of the result; backward: reduce-scatter."""
    return _Pair.apply(x, "gather", dim % x.dim(), group.group_name, group.size())


def scatter_sum(x: Tensor, dim: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's part along `dim` of the sum over ranks (reduce-scatter); backward: all-gather."""
    return _Pair.apply(x, "scatter_sum", dim % x.dim(), group.group_name, group.size())


def sum_over(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks (all-reduce), for equal uses of the result; backward: identity."""
    return _Pair.apply(x, "sum_over", group.group_name)


def sum_both(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks (all-reduce), for different uses of the result; backward: all-reduce."""
    return _Pair.apply(x, "sum_both", group.group_name)


def largest_of_ranks(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The largest of all ranks' numbers, without a gradient."""
    return ops.wait_tensor(ops.all_reduce(x.contiguous(), "max", group.group_name))


def sum_gradient(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x, equal on all ranks, for different uses of x; backward: all-reduce."""
    return _Pair.apply(x, "sum_gradient", group.group_name)


def once(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x on the first rank and zeros on the others, for a sum over ranks; backward: identity.

    x: equal on all ranks; the sum is used alike on all ranks.
    """
    return _Pair.apply(x, "once", group.rank())


def gather_equal(x: Tensor, dim: int, group: dist.ProcessGroup, size: int | None = None) -> Tensor:
    """All ranks' parts along `dim`, for equal uses of the result; backward: this rank's part.

    size: the full length if the parts are from torch.chunk, with shorter or empty last parts; null
    = equal parts.
    """
    dim, ranks, length = dim % x.dim(), group.size(), x.shape[dim % x.dim()]
    size = length * ranks if size is None else size
    chunk = -(-size // ranks)
    start = min(group.rank() * chunk, size)
    assert length == min(chunk, size - start), (tuple(x.shape), dim, group.rank(), size)
    if length < chunk:
        x = torch.cat((x, x.new_zeros((*x.shape[:dim], chunk - length, *x.shape[dim + 1 :]))), dim)
    # Short parts are the last ones, so their padding lies together at the end.
    full = _Pair.apply(x, "gather_equal", dim, group.group_name, ranks, group.rank())
    return full.narrow(dim, 0, size)


def exchange(x: Tensor, split: int, join: int, group: dist.ProcessGroup) -> Tensor:
    """Send part i along `split` to rank i; join the received parts along `join` (all-to-all)."""
    split, join = split % x.dim(), join % x.dim()
    return _Pair.apply(x, "exchange", split, join, group.group_name, group.size())


def exchange_counts(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """counts: [ranks * n], n for each rank -> [ranks * n], n from each (all-to-all)."""
    sizes = [len(counts) // group.size()] * group.size()
    return _all_to_all_rows(counts, sizes, sizes, group.group_name)


def exchange_rows(
    x: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
) -> Tensor:
    """x: [sum(send), dim], `send[i]` rows for rank i -> [sum(receive), dim] (all-to-all)."""
    return _Pair.apply(x, "exchange_rows", send, receive, group.group_name)


def pass_on(x: Tensor, rank: int, ranks: int, group: str) -> Tensor:
    """Begin to send x to the next rank of a ring, and to receive as much from the one before, for
    `received`; without a gradient. x is not changed before.
    """
    send, receive = [0] * ranks, [0] * ranks
    send[(rank + 1) % ranks] = receive[(rank - 1) % ranks] = len(x)
    return ops.all_to_all_single(x, receive, send, group)


def received(sent: Tensor) -> Tensor:
    """Wait for what the rank before has passed on."""
    return ops.wait_tensor(sent)


class _Pair(torch.autograd.Function):
    """A collective, by name in PAIRS, and the collective of the gradient."""

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
    # The collective stacks parts along dimension 0; another dimension needs a copy.
    if dim == 0:
        return parts
    return _not_a_view(parts.unflatten(0, (ranks, -1)).movedim(0, dim).flatten(dim, dim + 1))


def _own_chunk(x: Tensor, dim: int, group: str, ranks: int, rank: int) -> Tensor:
    return x.chunk(ranks, dim)[rank].contiguous()


def _reduce_scatter(x: Tensor, dim: int, group: str, ranks: int) -> Tensor:
    assert x.shape[dim] % ranks == 0, (tuple(x.shape), dim, ranks)
    # The collective cuts dimension 0.
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
    # After movedim each rank's part is a single row of dimension 0.
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
    "sum_both": (_all_reduce, _all_reduce),
    "sum_gradient": (_not_a_view, _all_reduce),
    "once": (_of_first, _identity),
    "gather_equal": (_all_gather, _own_chunk),
    "exchange": (_all_to_all, _all_to_all_back),
    "exchange_rows": (_all_to_all_rows, _all_to_all_rows_back),
}
"""By name: forward and backward, called with the same arguments."""
