"""An optimizer's step that leaves no trace where a flag says so."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def skips_on_device(optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> bool:
    """Whether it skips an update by itself, as torch's fused ones can, and nothing waits for the
    device. Weights on a CPU, offloaded ones too, are skipped by the host.
    """
    on_gpu = all(weight.device.type == "cuda" for weight in weights)
    return on_gpu and getattr(optimizer, "_step_supports_amp_scaling", False)


def step_unless(optimizer: torch.optim.Optimizer, bad: Tensor, *, on_device: bool) -> None:
    """The optimizer's step; where `bad` is true, weights and state keep every bit."""
    if not on_device:
        if not bad.item():
            optimizer.step()
        return
    # As torch.amp.GradScaler does it; the optimizer's kernel returns where found_inf is 1.
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
