"""SGD with momentum."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.optimizers.base import CAUTIOUS, FP32, Optimizer


@section
class SGD(Optimizer):
    """SGD with momentum, its weight decay decoupled (SGDW, arXiv:1711.05101)."""

    schema_name = "sgd"
    _target_: str = "forge.optim.sgd.SGD"
    momentum: float = opt(0.0, "how much of the sum of gradients is kept; 0 = no sum", ge=0, lt=1)
    nesterov: bool = opt(False, "step to where the momentum would lead next; needs momentum")
    cautious: bool = opt(False, CAUTIOUS)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return FP32 * math.prod(shape) if self.momentum else 0
