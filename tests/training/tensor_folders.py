"""Tensors into a folder and back, as a run does it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from forge.training import tensor_storage
from forge.training.tensor_storage import save, stored

__all__ = ["load", "save"]


def load(folder: Path, **targets: Tensor) -> dict[str, Tensor]:
    """All tensors of a folder, or those asked for into the given ones."""
    tensors = targets or {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in stored(folder).items()
    }
    tensor_storage.load(tensors, folder)
    return tensors
