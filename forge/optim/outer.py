"""The outer optimizer of DiLoCo (arXiv:2311.08105): SGD with Nesterov momentum on changes, and the
means over replicas that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

foreach: Any = torch  # pyright takes torch's functions on lists of tensors for private
BUCKET = 32 << 20
"""Bytes of weights in one all-reduce over replicas."""


class ReplicaMeans:
    """Means over replicas of tensors as they are now, in few messages that run in the background.

    group: the ranks with the same part of the model, one of each replica; None = one replica.
    """

    def __init__(self, tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._count = 1 if group is None else dist.get_world_size(group)
        self._sums: list[tuple[Tensor, list[torch.Size]]] = []
        self._works: list[Any] = []
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            self._sums.append((flat, [tensor.shape for tensor in bucket]))
            if group is not None:
                self._works.append(dist.all_reduce(flat, group=group, async_op=True))

    def result(self) -> list[Tensor]:
        """The means, once they have arrived."""
        for work in self._works:
            work.wait()
        if self._works:
            self._works = []
            for flat, _ in self._sums:
                flat /= self._count
        return [
            part.view(shape)
            for flat, shapes in self._sums
            for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)
        ]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of the same format together, up to BUCKET bytes."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(each.nbytes for each in bucket) + tensor.nbytes
        if bucket and (size > BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@torch.no_grad()
def outer_step(
    common: list[Tensor],
    velocity: list[Tensor],
    means: list[Tensor],
    *,
    lr: float,
    momentum: float,
) -> None:
    """Move the common weights towards the mean of the replicas' weights, in place.

    With change = common - mean: velocity <- momentum * velocity + change, and
    common <- common - lr * (change + momentum * velocity), as torch.optim.SGD(nesterov=True).
    velocity: [] without momentum. With lr=1 and no momentum the result is the mean to the bit.
    """
    if momentum:
        foreach._foreach_mul_(velocity, momentum)
        foreach._foreach_add_(velocity, foreach._foreach_sub(common, means))
    # As lerp, not as a difference: common - (common - mean) is rounded twice.
    for weight, mean in zip(common, means, strict=True):
        weight.lerp_(mean, lr)
    if momentum:
        foreach._foreach_add_(common, velocity, alpha=-lr * momentum)
