"""What this rank holds of a tensor that is laid out over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement


def local(values: Tensor) -> Tensor:
    """The local part of a DTensor; a plain tensor itself."""
    return values.to_local() if isinstance(values, DTensor) else values


def full(values: Tensor) -> Tensor:
    """All of a tensor; of a DTensor a collective of the ranks that have parts of it."""
    return values.full_tensor() if isinstance(values, DTensor) else values


def copy_local(values: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of a whole tensor into a DTensor; all of it into a plain tensor."""
    local(values).copy_(select(whole, owned(values)))


def owned(values: Tensor) -> list[Tensor]:
    """The global indices along each dimension of what this rank holds; of a plain tensor all."""
    indices = [torch.arange(size) for size in values.shape]
    if isinstance(values, DTensor):
        mesh, coordinate = values.device_mesh, values.device_mesh.get_coordinate()
        assert coordinate is not None, "this rank is not in the mesh of its parameter"
        for axis in _cut_order(values.placements):
            dim = values.placements[axis].dim  # type: ignore[attr-defined]
            parts, empty = torch.chunk(indices[dim], mesh.size(axis)), indices[dim][:0]
            indices[dim] = parts[coordinate[axis]] if coordinate[axis] < len(parts) else empty
    return indices


def _cut_order(placements: Sequence[Placement]) -> list[int]:
    """Mesh axes in the order in which they cut: strided shards (FSDP after TP) last, reversed."""
    names = [type(placement).__name__ for placement in placements]
    strided = [axis for axis, name in enumerate(names) if name == "_StridedShard"]
    cuts = [axis for axis, placement in enumerate(placements) if cut_dim(placement) is not None]
    return [axis for axis in cuts if axis not in strided] + strided[::-1]


def cut_dim(placement: Placement) -> int | None:
    """The dimension that a placement cuts: a strided shard is no Shard in torch 2.13."""
    return getattr(placement, "dim", None)


def select(values: Tensor, indices: Sequence[Tensor], *, first: int = 0) -> Tensor:
    """What the indices name along each dimension from `first` on."""
    for dim, index in enumerate(indices, start=first):
        if len(index) < values.shape[dim]:
            values = values.index_select(dim, index)
    return values
