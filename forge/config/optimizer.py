"""The `optimizer` group: how weights are updated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Optimizer(Section):
    """What every optimizer has: a peak learning rate and weight decay."""

    state_per_weight: ClassVar[int | None] = None
    """Values of fp32 that it keeps of each weight; None = not known."""

    _target_: str = MISSING
    lr: float = opt(3e-4, "peak learning rate", gt=0)
    weight_decay: float = opt(
        0.1, "decoupled weight decay of the matrices, not of norms and biases", ge=0
    )
    decay_embeddings: bool = opt(True, "apply weight decay to embedding tables too")


@dataclass(kw_only=True)
class AdamW(Optimizer):
    """AdamW (arXiv:1711.05101)."""

    schema_name = "adamw"
    state_per_weight = 2
    _target_: str = "forge.optim.adamw.adamw"
    betas: tuple[float, float] = opt(
        (0.9, 0.95), "decay rates of the first and second moment", ge=0, lt=1
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)
    fused: bool = opt(True, "one fused kernel for all parameters, where the device has it")


@dataclass(kw_only=True)
class Lion(Optimizer):
    """Lion, the sign of a momentum (arXiv:2302.06675)."""

    schema_name = "lion"
    state_per_weight = 1
    _target_: str = "forge.optim.lion.lion"
    betas: tuple[float, float] = opt(
        (0.9, 0.95), "how much of the momentum is in the sign, and its decay rate", ge=0, lt=1
    )
