"""What this rank holds of a tensor that is laid out over ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor

from forge.models.init import select

See = Callable[[DTensor], Tensor]
"""What of a parameter this rank computes with."""


def local(values: Tensor) -> Tensor:
    """The local part of a DTensor; a plain tensor itself."""
    return values.to_local() if isinstance(values, DTensor) else values


def place(
    module: nn.Module,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    see: See = local,
) -> None:
    """Lay a module's own parameter out over a mesh, in place.

    The module's forward, whatever it is, then finds what `see` makes of the parameter under its
    name: by default the local part, with gradients.
    """
    parameter = module._parameters[name]
    assert parameter is not None, name
    values = distribute_tensor(parameter.detach(), mesh, placements)
    module.register_parameter(name, nn.Parameter(values, parameter.requires_grad))
    module.__class__ = _seeing(type(module), name)
    module.seen_as = {**getattr(module, "seen_as", {}), name: (mesh.ndim, see)}  # type: ignore[assignment]


@functools.cache
def _seeing(original: type, name: str) -> type:
    def seen(self: Any) -> Tensor:
        parameter, (axes, see) = self._parameters[name], self.seen_as[name]
        # FSDP adds an axis to the mesh of what it has cut, and looks at it under this name too.
        return see(parameter) if len(parameter.placements) == axes else parameter

    return type(original.__name__, (original,), {name: property(seen)})


def copy_owned(values: Tensor, whole: Tensor) -> None:
    local(values).copy_(select(whole, owned(values)))


def owned(values: Tensor) -> list[Tensor]:
    """The global indices along each dimension of what this rank holds; of a plain tensor all."""
    indices = [torch.arange(size) for size in values.shape]
    if isinstance(values, DTensor):
        mesh, coordinate = values.device_mesh, values.device_mesh.get_coordinate()
        assert coordinate is not None, "this rank is not in the mesh of its parameter"
        for axis in _cut_order(values.placements):
            dim = values.placements[axis].dim  # type: ignore[attr-defined]
            parts, none = torch.chunk(indices[dim], mesh.size(axis)), indices[dim][:0]
            indices[dim] = parts[coordinate[axis]] if coordinate[axis] < len(parts) else none
    return indices


def _cut_order(placements: Sequence[Placement]) -> list[int]:
    """Mesh axes in the order in which they cut: strided shards (FSDP after TP) last, reversed."""
    names = [type(placement).__name__ for placement in placements]
    strided = [axis for axis, name in enumerate(names) if name == "_StridedShard"]
    shards = [axis for axis, placement in enumerate(placements) if isinstance(placement, Shard)]
    return [axis for axis in shards if axis not in strided] + strided[::-1]
