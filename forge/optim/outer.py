"""The outer optimizer of DiLoCo (arXiv:2311.08105): SGD with Nesterov momentum on changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

foreach: Any = torch  # pyright takes torch's functions on lists of tensors for private


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
