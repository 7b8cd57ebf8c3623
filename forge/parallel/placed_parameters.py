"""Parameters that a module lays out over ranks, and still finds under their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from forge.parallel.collectives import once
from forge.tensors.local import local

See = Callable[[DTensor], Tensor]
"""What of a parameter this rank computes with."""


def added_once(group: dist.ProcessGroup, parameter: DTensor) -> Tensor:
    """What ranks whose sum is used see of a parameter that each has: all of it, or zeros."""
    return once(parameter.to_local(), group)


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
