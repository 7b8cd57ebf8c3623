"""The norm of all gradients, wherever their parts are, and clipping by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from forge.tensors.local import local
from forge.tensors.wide import widest


def norm_of(
    named: Iterable[tuple[str, nn.Parameter]],
    *,
    counted: Callable[[str], bool],
    spread: bool,
    also: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The global L2 norm of gradients, and the sum over all ranks of the number `also`,
    asynchronous.

    spread: parameters are laid out over ranks; then all ranks call this, and each adds the squares
    of what it has as the first of its copies. counted: whether a parameter, by name, counts here,
    not being a copy of another stage's.
    """
    found = [(name, p.grad) for name, p in named if p.grad is not None]
    like = local(found[0][1]) if found else torch.zeros(())
    own = squares(found, counted=counted, spread=spread, device=like.device)
    return total_norm(own, like, spread=spread, also=also)


def total_norm(
    own: Tensor, like: Tensor, *, spread: bool, also: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same of the sum of squares that this rank has, see `squares`. like: in whose format, but
    fp32 at least, the norm is.
    """
    sums = torch.full((2,), also, dtype=widest(like.device), device=like.device)
    sums[0] = own
    if spread:
        dist.all_reduce(sums)
    return sums[0].sqrt().to(torch.promote_types(like.dtype, torch.float32)), sums[1]


def clip_factor(norm: Tensor, largest: float) -> Tensor:
    """By what gradients are multiplied so that their norm is at most this, as
    torch.nn.utils.clip_grads_with_norm_ does it.
    """
    return (largest / (norm + 1e-6)).clamp(max=1.0)


def scale(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply gradients, in place."""
    own = [local(gradient) for gradient in gradients]
    if own:
        torch._foreach_mul_(own, factor)  # type: ignore[attr-defined]


def clip_values(gradients: Iterable[Tensor], largest: float) -> None:
    """Bring every value into [-largest, largest], in place."""
    own = [local(gradient) for gradient in gradients]
    if own:
        torch._foreach_clamp_min_(own, -largest)  # type: ignore[attr-defined]
        torch._foreach_clamp_max_(own, largest)  # type: ignore[attr-defined]


def squares(
    named: Iterable[tuple[str, Tensor]],
    *,
    counted: Callable[[str], bool],
    spread: bool,
    device: torch.device,
) -> Tensor:
    """The sum of squares of what this rank has of tensors as the first of its copies.

    In fp64 where there is one: sums in fp32 depend on how a tensor is cut, by 1e-4 on a CPU (torch
    2.13).
    """
    own = [
        local(values)
        for name, values in named
        if not spread or (counted(name) and _is_first_copy(values))
    ]
    if not own:
        return torch.zeros((), dtype=widest(device), device=device)
    norms = torch._foreach_norm(own, 2, widest(own[0].device))  # type: ignore[arg-type]
    return torch.stack(norms).square().sum()


def _is_first_copy(gradient: Tensor) -> bool:
    if not isinstance(gradient, DTensor):
        return dist.get_rank() == 0
    coordinate = gradient.device_mesh.get_coordinate()
    assert coordinate is not None
    placed = zip(coordinate, gradient.placements, strict=True)
    return all(index == 0 for index, place in placed if isinstance(place, Replicate))
