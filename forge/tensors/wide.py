"""Floating-point formats wide enough to compute in: of a device, and of a parameter."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)


def widest(device: torch.device) -> torch.dtype:
    """The format for sums over many values: fp64, or fp32 on a device without fp64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def in_16_bits(parameter: Tensor) -> bool:
    return parameter.dtype.itemsize == 2


def stored_format(parameter: Tensor) -> torch.dtype:
    """The format in which a parameter stores gradients; see `precision.grad_dtype`."""
    return parameter.grad_dtype or parameter.dtype  # type: ignore[attr-defined]


def wide_dtype(parameter: Tensor) -> torch.dtype:
    """The format for computing the update of a parameter: fp32 or wider."""
    return torch.promote_types(parameter.dtype, torch.float32)
