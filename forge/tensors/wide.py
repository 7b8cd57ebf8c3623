"""The widest floating-point format of a device."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = ("mps",)


def widest(device: torch.device) -> torch.dtype:
    """The format for sums over many values: fp64, or fp32 on a device without fp64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
