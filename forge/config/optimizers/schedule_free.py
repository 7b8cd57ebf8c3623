"""Schedule-free AdamW."""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.optimizers.base import Optimizer


@section
class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW (arXiv:2405.15682): a mean of its weights is read, and no rate falls."""

    schema_name = "schedule_free_adamw"
    state_per_weight = 2
    one_by_one = False
    _target_: str = "forge.optim.schedule_free.ScheduleFreeAdamW"
    betas: tuple[float, float] = opt(
        (0.9, 0.95),
        "share of the mean in the weights that are trained, and decay rate of the second moment",
        ge=0,
        lt=1,
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)
    schedule_free_warmup_steps: int = opt(
        0, "updates over which its own rate grows, beside any warm-up of the scheduler", ge=0
    )
