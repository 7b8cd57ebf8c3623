"""The `optimizer` group: how weights are updated."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Optimizer(Section):
    """What every optimizer has: a peak learning rate and weight decay."""

    _target_: str = MISSING
    lr: float = opt(3e-4, "peak learning rate", gt=0)
    weight_decay: float = opt(
        0.1, "decoupled weight decay of the matrices, not of norms and biases", ge=0
    )
    decay_embeddings: bool = opt(True, "apply weight decay to embedding tables too")


@dataclass(kw_only=True)
class AdamW(Optimizer):
    """AdamW (arXiv:1711.05101)."""

    _target_: str = "forge.optim.adamw.adamw"
    betas: tuple[float, float] = opt(
        (0.9, 0.95), "decay rates of the first and second moment", ge=0, lt=1
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)
    fused: bool = opt(True, "one fused kernel for all parameters, where the device has it")
