"""Tensors into a folder and back, as a run does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from forge.training.tensor_files import causes, reader, stored, writer


def save(folder: Path, tensors: dict[str, Any]) -> None:
    with causes():
        dcp.save(tensors, storage_writer=writer(folder))


def load(folder: Path, **targets: Tensor) -> dict[str, Tensor]:
    """All tensors of a folder, or those asked for into the given ones."""
    tensors = targets or {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in stored(folder).items()
    }
    with causes():
        dcp.load(tensors, storage_reader=reader(folder))
    return tensors
