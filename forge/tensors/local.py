"""This rank's part of a tensor laid out over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement


def local(values: Tensor) -> Tensor:
    """The local part of a DTensor; a plain tensor itself."""
    return values.to_local() if isinstance(values, DTensor) else values


def full(values: Tensor) -> Tensor:
    """The whole tensor; for a DTensor a collective of all ranks with parts."""
    return values.full_tensor() if isinstance(values, DTensor) else values


def copy_local(values: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of a whole tensor into a DTensor, or the whole into a plain tensor."""
    local(values).copy_(select(whole, owned(values)))


def owned(values: Tensor) -> list[Tensor]:
    """The global indices of this rank's part along each dimension; all of a plain tensor's."""
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
    """Mesh axes in the order of the cuts: strided shards (FSDP after TP) last, reversed."""
    names = [type(placement).__name__ for placement in placements]
    strided = [axis for axis, name in enumerate(names) if name == "_StridedShard"]
    cuts = [axis for axis, placement in enumerate(placements) if cut_dim(placement) is not None]
    return [axis for axis in cuts if axis not in strided] + strided[::-1]


def cut_dim(placement: Placement) -> int | None:
    """The dimension cut by a placement; a strided shard is no Shard in torch 2.13."""
    return getattr(placement, "dim", None)


def select(values: Tensor, indices: Sequence[Tensor], *, first: int = 0) -> Tensor:
    """Select values by indices along each dimension from `first` on."""
    for dim, index in enumerate(indices, start=first):
        if len(index) < values.shape[dim]:
            values = values.index_select(dim, index)
    return values
