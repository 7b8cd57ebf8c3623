"""The widest floating-point format of a device."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = ("mps",)


def widest(device: torch.device) -> torch.dtype:
    """In which sums over many values are taken: fp64, or fp32 where the device has no other."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
