"""Parameters of a module laid out over ranks, and still found under their names."""

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
"""The view of a parameter in this rank's computation."""


def added_once(group: dist.ProcessGroup, parameter: DTensor) -> Tensor:
    """A parameter in a rank's summand: all of the parameter on the first rank, zeros on others."""
    return once(parameter.to_local(), group)


def place_parameter(
    module: nn.Module,
    name: str,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    see: See = local,
) -> None:
    """Lay a module's own parameter out over a mesh, in place.

    The module's unchanged forward then finds the output of `see` under the parameter's name: by
    default the local part, with gradients.
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
        # FSDP adds an axis to the mesh of a parameter, and reads the parameter by this name too.
        return see(parameter) if len(parameter.placements) == axes else parameter

    return type(original.__name__, (original,), {name: property(seen)})
