"""Reduction of gradients over ranks, their norm wherever their parts are, and clipping by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from forge.tensors.local import local
from forge.tensors.wide import widest


def norm_of(
    named: Iterable[tuple[str, nn.Parameter]],
    *,
    counted: Callable[[str], bool],
    spread: bool,
    also: float = 0.0,
    replicas: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """The global L2 norm of gradients, and the sum of `also` over all ranks; asynchronous.

    spread: parameters are laid out over ranks; then all ranks call this, and each adds the squares
    of its first copies. counted: whether a parameter, by name, counts on this rank, not being a
    copy of another stage's parameter. replicas: as in `total_norm`.
    """
    gradients = [(name, p.grad) for name, p in named if p.grad is not None]
    like = local(gradients[0][1]) if gradients else torch.zeros(())
    square_sum = squares(gradients, counted=counted, spread=spread, device=like.device)
    return total_norm(square_sum, like, spread=spread, also=also, replicas=replicas)


def total_norm(
    own: Tensor,
    like: Tensor,
    *,
    spread: bool,
    also: float = 0.0,
    replicas: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """The global norm from this rank's sum of squares, see `squares`, and the sum of `also`.

    like: its format, but fp32 at least, is the norm's format. replicas: (i, n), this rank is of the
    i-th of n replicas with gradients of their own; each has its norm, not finite if any is not.
    """
    number, count = replicas
    if not spread and count == 1:
        return own.sqrt().to(torch.promote_types(like.dtype, torch.float32)), own.new_full((), also)
    # A single all-reduce for the squares of each replica and `also`.
    sums = torch.zeros(count + 1, dtype=widest(like.device), device=like.device)
    if also:  # assigned, the number would be copied from the host, and wait
        sums[count].fill_(also)
    sums[number] = own
    if spread:
        dist.all_reduce(sums)
    squared = sums[number] if count == 1 else sums[number] + 0.0 * sums[:count].sum()
    return squared.sqrt().to(torch.promote_types(like.dtype, torch.float32)), sums[count]


def clip_factor(norm: Tensor, largest: float) -> Tensor:
    """The factor for gradients with a norm of at most `largest`, as in
    torch.nn.utils.clip_grads_with_norm_.
    """
    return (largest / (norm + 1e-6)).clamp_max_(1.0)


def scale_gradients(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply gradients, in place."""
    local_values = [local(gradient) for gradient in gradients]
    if local_values:
        torch._foreach_mul_(local_values, factor)  # type: ignore[attr-defined]


def clip_values(gradients: Iterable[Tensor], largest: float) -> None:
    """Bring every value into [-largest, largest], in place."""
    local_values = [local(gradient) for gradient in gradients]
    if local_values:
        torch._foreach_clamp_min_(local_values, -largest)  # type: ignore[attr-defined]
        torch._foreach_clamp_max_(local_values, largest)  # type: ignore[attr-defined]


def squares(
    named: Iterable[tuple[str, Tensor]],
    *,
    counted: Callable[[str], bool],
    spread: bool,
    device: torch.device,
) -> Tensor:
    """The sum of squares over tensors where this rank has the first copy.

    In fp64 where the device has fp64: sums in fp32 depend on how a tensor is cut, by 1e-4 on a CPU
    (torch 2.13).
    """
    local_values = [
        local(values)
        for name, values in named
        if not spread or (counted(name) and _is_first_copy(values))
    ]
    if not local_values:
        return torch.zeros((), dtype=widest(device), device=device)
    # torch has a fused norm for many tensors, but no fused sum of squares.
    norms = torch._foreach_norm(local_values, 2, widest(local_values[0].device))  # type: ignore[arg-type]
    return torch.stack(norms).square_().sum()


def _is_first_copy(gradient: Tensor) -> bool:
    if not isinstance(gradient, DTensor):
        return dist.get_rank() == 0
    coordinate = gradient.device_mesh.get_coordinate()
    assert coordinate is not None
    # Shards differ and replicas repeat: among replicas only index 0 counts.
    placed = zip(coordinate, gradient.placements, strict=True)
    return all(index == 0 for index, placement in placed if isinstance(placement, Replicate))


def reduce_in_backward(model: nn.Module, *, last: bool, each: bool) -> None:
    """Set whether the next backward pass reduces gradients.

    each: reduce gradients of each pass; else the last pass reduces the sum. With replicas each
    micro-batch is reduced over shards only, and over replicas in the last.
    """
    if isinstance(model, FSDPModule):
        if getattr(model, "keeps_gathered", False):
            model.set_reshard_after_backward(last)
        model.set_requires_gradient_sync(last or each)
        if each:
            model.set_requires_all_reduce(last)
        model.set_is_last_backward(last or each)
