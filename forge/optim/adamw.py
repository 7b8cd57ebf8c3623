"""AdamW."""

from __future__ import annotations

from typing import Any

import torch

from forge.config.optimizer import AdamW as AdamWConfig
from forge.optim.adam import Adam, options_of
from forge.optim.elementwise import in_16_bits

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


def adamw(section: AdamWConfig, *, params: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """torch's AdamW (arXiv:1711.05101), or our own with what it lacks.

    It is fused where `section.fused` asks for it and every parameter's device has the kernel;
    else as torch chooses. Of weights in 16 bits torch would compute the update in 16 bits.
    """
    if not section.is_torchs or in_16_bits(params[0]["params"][0]):
        return Adam(params, **options_of(section))
    devices = {parameter.device.type for group in params for parameter in group["params"]}
    beta1, beta2 = section.betas
    return torch.optim.AdamW(
        params,
        lr=section.lr,
        betas=(float(beta1), float(beta2)),
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True if section.fused and devices.issubset(FUSED_DEVICES) else None,
    )
