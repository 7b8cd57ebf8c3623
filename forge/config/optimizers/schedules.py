"""The `scheduler` group: the learning rate over the steps, as a factor of optimizer.lr."""

from __future__ import annotations

from omegaconf import MISSING

from forge.config.field import Section, opt, section

WARMUP_SHARE, WARMUP_MOST = 10, 40
WARMUP = f"a tenth, at most {WARMUP_MOST},"


@section
class Scheduler(Section):
    """Base of every schedule."""

    _target_: str = MISSING


@section
class NoSchedule(Scheduler):
    """The peak learning rate at every step, without warm-up."""

    schema_name = "none"
    _target_: str = "forge.optim.schedules.none"


@section
class Constant(Scheduler):
    """Linear warm-up, then the peak."""

    schema_name = "constant"
    _target_: str = "forge.optim.schedules.constant"
    warmup_steps: int | None = opt(
        2000, f"steps of linear warm-up; null = {WARMUP} of train.max_steps", ge=0
    )
    warmup_ratio: float | None = opt(
        None, "warm-up as a share of train.max_steps; null = warmup_steps", ge=0, le=1
    )

    def open_warmup(self, horizon: int) -> tuple[int, str]:
        """Steps of warm-up of a run of `horizon` steps, and words for the share."""
        if self.warmup_ratio is not None:
            return round(self.warmup_ratio * horizon), f"{self.warmup_ratio:g}"
        return min(horizon // WARMUP_SHARE, WARMUP_MOST), WARMUP


@section
class Decay(Constant):
    """What every decaying schedule has: how long it decays and where it ends."""

    decay_steps: int | None = opt(
        None, "steps from the peak to the floor; null = what is left of train.max_steps", gt=0
    )
    min_lr_ratio: float = opt(0.1, "the floor as a share of the peak", ge=0, le=1)
    ends_at_floor: bool = opt(
        True, "the last step of the decay is at the floor; false = the step after it would be"
    )


@section
class Cosine(Decay):
    """Half a cosine from the peak to the floor (arXiv:1608.03983)."""

    schema_name = "cosine"
    _target_: str = "forge.optim.schedules.cosine"


@section
class Linear(Decay):
    """A straight line from the peak to the floor."""

    schema_name = "linear"
    _target_: str = "forge.optim.schedules.linear"


@section
class WSD(Decay):
    """Warm-up, stable, decay (arXiv:2404.06395)."""

    schema_name = "wsd"
    _target_: str = "forge.optim.schedules.wsd"
    stable_steps: int | None = opt(
        None, "steps at the peak; null = what warm-up and decay leave", ge=0
    )
    decay_ratio: float | None = opt(
        None, "decay as a share of train.max_steps; null = decay_steps", ge=0, le=1
    )
    wsd_decay_type: str = opt("cosine", "shape of the decay", choices=("cosine", "linear", "sqrt"))

    def open_decay(self, horizon: int, warmup: int) -> tuple[int, str]:
        """Steps of decay of a run of `horizon` steps, and words for the share."""
        if self.decay_ratio is not None:
            return round(self.decay_ratio * horizon), f"{self.decay_ratio:g}"
        free_steps, fifth = horizon - warmup - (self.stable_steps or 0), round(0.2 * horizon)
        # arXiv:2405.18392 finds a cool-down over a fifth as good as a full cosine
        if self.stable_steps is None and fifth <= free_steps:
            return fifth, "a fifth"
        return free_steps, "what warm-up and stable steps leave"


@section
class Rex(Decay):
    """REX (arXiv:2107.04197): slow at first, steep at the end."""

    schema_name = "rex"
    _target_: str = "forge.optim.schedules.rex"
    rex_alpha: float = opt(1.0, "exponent of the published curve; 1 = as published", gt=0)
