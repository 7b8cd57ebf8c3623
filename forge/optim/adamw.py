"""AdamW with parameter groups by role."""

from __future__ import annotations

import torch
from torch import nn

from forge.config.optimizer import AdamW as AdamWConfig
from forge.optim.groups import parameter_groups

FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")


def adamw(section: AdamWConfig, *, model: nn.Module) -> torch.optim.AdamW:
    """torch's AdamW (arXiv:1711.05101) over the trainable parameters of `model`.

    Fused where `section.fused` asks for it and every parameter's device has the kernel; else as
    torch chooses.
    """
    groups = parameter_groups(
        model, weight_decay=section.weight_decay, decay_embeddings=section.decay_embeddings
    )
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    beta1, beta2 = section.betas
    return torch.optim.AdamW(
        groups,
        lr=section.lr,
        betas=(float(beta1), float(beta2)),
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True if section.fused and devices.issubset(FUSED_DEVICES) else None,
    )
