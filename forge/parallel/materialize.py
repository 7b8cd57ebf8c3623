"""Initial weights of a model that is laid out: each rank draws the rows it owns, and no rank ever holds the whole."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Shard

from forge.models.init import Initialisable, draw_rows, rows_per_block


def materialize(
    model: nn.Module, device: torch.device, seed: int, *, buffers: torch.device | None = None, num_threads: int | None = None
) -> None:
    """Allocate a model built on the meta device and fill it as `init_weights` fills a whole one, to the bit.

    A tied weight is drawn once, under its first name. buffers: their device, where it is another one than that of the parameters.
    """
    model.to_empty(device=device)
    if buffers is not None and buffers != device:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(buffers))
    fill(model, seed, num_threads=num_threads)  # type: ignore[arg-type]


def fill(model: Initialisable, seed: int, *, num_threads: int | None = None) -> None:
    """Fill every parameter, whole or a DTensor, and every computed buffer, in place."""
    with ThreadPoolExecutor(num_threads or torch.get_num_threads()) as pool:
        for name, parameter in model.named_parameters():
            values = parameter.detach()
            if values.dim() == 1:
                _local(values).fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            _fill_rows(_local(values), name, tuple(values.shape), owned(values), model.init_std(name), seed, pool)
    model.reset_buffers()


def copy_owned(values: Tensor, whole: Tensor) -> None:
    """Copy into a tensor, in place, what this rank holds of it."""
    local = _local(values)
    for dim, index in enumerate(owned(values)):
        if len(index) < whole.shape[dim]:
            whole = whole.index_select(dim, index)
    local.copy_(whole)


def owned(values: Tensor) -> list[Tensor]:
    """The global indices along each dimension of what this rank holds of a tensor; of a plain one all."""
    indices = [torch.arange(size) for size in values.shape]
    if isinstance(values, DTensor):
        mesh, coordinate = values.device_mesh, values.device_mesh.get_coordinate()
        assert coordinate is not None, "this rank is not in the mesh of its parameter"
        for axis in _cut_order(values.placements):
            dim = values.placements[axis].dim  # type: ignore[attr-defined]
            parts = torch.chunk(indices[dim], mesh.size(axis))
            indices[dim] = parts[coordinate[axis]] if coordinate[axis] < len(parts) else indices[dim][:0]
    return indices


def _cut_order(placements: Sequence[Placement]) -> list[int]:
    """Mesh axes in the order in which they cut: strided shards, FSDP's of what TP has cut, come last and in reverse."""
    strided = [axis for axis, placement in enumerate(placements) if type(placement).__name__ == "_StridedShard"]
    plain = [axis for axis, placement in enumerate(placements) if isinstance(placement, Shard) and axis not in strided]
    return plain + strided[::-1]


def _local(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values


def _fill_rows(
    local: Tensor, name: str, shape: tuple[int, ...], indices: list[Tensor], std: float, seed: int, pool: ThreadPoolExecutor
) -> None:
    """Draw the rows that are owned, some blocks at a time, and cut each to what is owned of it."""
    rows = indices[0]
    owner = rows // rows_per_block(shape)

    def draw(block: int) -> None:
        here = (owner == block).nonzero().flatten()
        drawn = draw_rows(name, shape, std, seed, rows[here].tolist())
        for dim, index in enumerate(indices[1:], start=1):
            if len(index) < shape[dim]:
                drawn = drawn.index_select(dim, index)
        local[here[0] : here[-1] + 1].copy_(drawn)

    for _ in pool.map(draw, owner.unique().tolist()):
        pass
