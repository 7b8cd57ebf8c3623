"""Room for the tensors of a checkpoint, laid out as in the model; weights packed on loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from forge.adapters.packed import Packed
from forge.tensors.local import cut_dim, local
from forge.training.checkpoints import tensor_storage


def allocate_for(parameter: Tensor | None, stored: Any, *, in_parts: bool = False) -> Tensor:
    """Allocate room for a stored tensor, laid out as its parameter if the shapes are equal.

    in_parts: a part of an optimizer entry, as 'exp_avg.codes' of exp_avg, with uncut rows of
    another length.
    """
    dtype, shape = stored.properties.dtype, tuple(stored.size)
    if not isinstance(parameter, DTensor):
        return torch.empty(shape, dtype=dtype)
    if shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    if not in_parts:
        return torch.empty(shape, dtype=dtype)
    return _whole_rows(parameter, shape, dtype)


def _whole_rows(parameter: DTensor, shape: tuple[int, ...], dtype: torch.dtype) -> DTensor:
    """Allocate on the CPU this rank's rows of a parameter, with rows of another length."""
    last = parameter.ndim - 1
    placements = [Replicate() if cut_dim(p) == last else p for p in parameter.placements]
    part = torch.empty(*parameter.to_local().shape[:-1], shape[-1], dtype=dtype)
    stride, mesh = torch.empty(shape, device="meta").stride(), parameter.device_mesh
    size = torch.Size(shape)
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=size, stride=stride)


def fill_packed(matrix: Packed, folder: Path, stored: Any) -> None:
    """Fill a packed matrix from a checkpoint; each rank reads only its own rows."""
    codes = matrix.parameters()["codes"]
    shape, dtype = tuple(stored.size), stored.properties.dtype
    if isinstance(codes, DTensor):
        values: Tensor = _whole_rows(codes, shape, dtype)
    else:
        values = torch.empty(shape, dtype=dtype)
    tensor_storage.load_tensors({f"model/{matrix.name}": values}, folder, alone=True)
    matrix.fill(matrix.rows_of(local(values)))
