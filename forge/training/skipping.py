"""An optimizer's step that leaves no trace where a flag says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def skips_on_device(optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> bool:
    """Whether it skips an update by itself, as torch's fused ones can, and nothing waits for the
    device. Weights on a CPU, offloaded ones too, are skipped by the host.
    """
    on_gpu = all(weight.device.type == "cuda" for weight in weights)
    return on_gpu and getattr(optimizer, "_step_supports_amp_scaling", False)


def takes_factor(optimizer: torch.optim.Optimizer, *, on_device: bool) -> bool:
    """Whether its update multiplies gradients by a factor itself, as forge's own do, and torch's
    fused ones on a GPU, so that clipping needs no pass over them.
    """
    parts: list[Any] = getattr(optimizer, "optimizers", [optimizer])
    return all(
        getattr(one, "takes_factor", False) or (on_device and one.defaults.get("fused"))
        for one in parts
    )


def step_unless(
    step: Callable[[dict[str, Any]], None],
    bad: Tensor,
    *,
    on_device: bool,
    factor: Tensor | None = None,
) -> None:
    """An optimizer's step, given what it is told; where `bad` is true, weights and state keep every
    bit. factor: of gradients.
    """
    flags: dict[str, Any] = {} if factor is None else {"factor": factor}
    if not on_device:
        if not bad.item():
            step(flags)
        return
    # As torch.amp.GradScaler does it; the optimizer's kernel returns where found_inf is 1.
    scale = None if factor is None else factor.reciprocal()
    step({**flags, "grad_scale": scale, "found_inf": bad.float()})
