"""The `scheduler` group: the learning rate over the steps, as a factor of optimizer.lr."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import MISSING

from forge.config.field import Section, opt

WARMUP_SHARE, WARMUP_MOST = 10, 40
SCHEDULE = ("scheduler.warmup_steps", "scheduler.decay_steps", "scheduler.stable_steps")
WARMUP = f"a tenth, at most {WARMUP_MOST},"


@dataclass(kw_only=True)
class Scheduler(Section):
    """Base of every schedule."""

    _target_: str = MISSING


@dataclass(kw_only=True)
class NoSchedule(Scheduler):
    """The peak learning rate at every step, without warm-up."""

    schema_name = "none"
    _target_: str = "forge.optim.schedules.none"


@dataclass(kw_only=True)
class Constant(Scheduler):
    """Linear warm-up, then the peak."""

    schema_name = "constant"
    _target_: str = "forge.optim.schedules.constant"
    warmup_steps: int | None = opt(
        2000, f"steps of linear warm-up; null = {WARMUP} of train.max_steps", ge=0
    )


@dataclass(kw_only=True)
class Decay(Constant):
    """What every decaying schedule has: how long it decays and where it ends."""

    decay_steps: int | None = opt(
        None, "steps from the peak to the floor; null = what is left of train.max_steps", gt=0
    )
    min_lr_ratio: float = opt(0.1, "the floor as a share of the peak", ge=0, le=1)


@dataclass(kw_only=True)
class Cosine(Decay):
    """Half a cosine from the peak to the floor (arXiv:1608.03983)."""

    schema_name = "cosine"
    _target_: str = "forge.optim.schedules.cosine"


@dataclass(kw_only=True)
class Linear(Decay):
    """A straight line from the peak to the floor."""

    schema_name = "linear"
    _target_: str = "forge.optim.schedules.linear"


@dataclass(kw_only=True)
class WSD(Decay):
    """Warm-up, stable, decay (arXiv:2404.06395)."""

    schema_name = "wsd"
    _target_: str = "forge.optim.schedules.wsd"
    stable_steps: int | None = opt(
        None, "steps at the peak; null = what warm-up and decay leave", ge=0
    )
    wsd_decay_type: str = opt("cosine", "shape of the decay", choices=("cosine", "linear", "sqrt"))


@dataclass(kw_only=True)
class Rex(Decay):
    """REX (arXiv:2107.04197): slow at first, steep at the end."""

    schema_name = "rex"
    _target_: str = "forge.optim.schedules.rex"
    rex_alpha: float = opt(1.0, "exponent of the published curve; 1 = as published", gt=0)


def open_steps(schedule: Scheduler, horizon: int) -> Iterator[tuple[str, int, str]]:
    """(key, value, why) of each option in steps that is open, for `horizon` updates."""
    if not isinstance(schedule, Constant):
        return
    of, warmup = f"train.max_steps={horizon}", schedule.warmup_steps
    if warmup is None:
        warmup = min(horizon // WARMUP_SHARE, WARMUP_MOST)
        yield "scheduler.warmup_steps", warmup, f"{WARMUP} of {of}"
    if isinstance(schedule, WSD):
        if schedule.decay_steps is None:
            value, fifth = horizon - warmup - (schedule.stable_steps or 0), round(0.2 * horizon)
            why = f"what warm-up and stable steps leave of {of}"
            # arXiv:2405.18392 finds a cool-down over a fifth as good as a full cosine
            if schedule.stable_steps is None and fifth <= value:
                value, why = fifth, f"a fifth of {of}"
            yield "scheduler.decay_steps", max(value, 1), why
        if schedule.stable_steps is None:
            value = horizon - warmup - (schedule.decay_steps or 0)
            why = f"{of} - {warmup} of warm-up - {schedule.decay_steps} of decay"
            yield "scheduler.stable_steps", max(value, 0), why
    elif isinstance(schedule, Decay) and schedule.decay_steps is None:
        why = f"{of} - scheduler.warmup_steps={warmup}"
        yield "scheduler.decay_steps", max(horizon - warmup, 1), why


def horizon(schedule: Decay) -> int:
    """Steps that the schedule spans: warm-up, stable and decay."""
    stable = schedule.stable_steps if isinstance(schedule, WSD) else 0
    return (schedule.warmup_steps or 0) + (schedule.decay_steps or 0) + (stable or 0)
