"""Lion: the sign of a momentum."""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.optimizers.base import CAUTIOUS, Optimizer


@section
class Lion(Optimizer):
    """Lion, the sign of a momentum (arXiv:2302.06675)."""

    schema_name = "lion"
    state_per_weight = 1
    _target_: str = "forge.optim.lion.Lion"
    betas: tuple[float, float] = opt(
        (0.9, 0.95), "how much of the momentum is in the sign, and its decay rate", ge=0, lt=1
    )
    cautious: bool = opt(False, CAUTIOUS)
