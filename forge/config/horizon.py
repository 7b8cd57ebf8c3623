"""Steps: of a schedule over a run, and steps named one by one or evenly in their logarithm."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

from forge.config.optimizers.schedules import WSD, Constant, Decay, Scheduler

SCHEDULE = ("scheduler.warmup_steps", "scheduler.decay_steps", "scheduler.stable_steps")


def open_steps(schedule: Scheduler, horizon: int) -> Iterator[tuple[str, int, str]]:
    """Yield (key, value, why) of each open option in steps, for `horizon` updates."""
    if not isinstance(schedule, Constant):
        return
    total, warmup = f"train.max_steps={horizon}", schedule.warmup_steps
    if warmup is None:
        warmup, share = schedule.open_warmup(horizon)
        yield "scheduler.warmup_steps", warmup, f"{share} of {total}"
    if isinstance(schedule, WSD):
        if schedule.decay_steps is None:
            value, share = schedule.open_decay(horizon, warmup)
            yield "scheduler.decay_steps", max(value, 1), f"{share} of {total}"
        if schedule.stable_steps is None:
            value = horizon - warmup - (schedule.decay_steps or 0)
            why = f"{total} - {warmup} of warm-up - {schedule.decay_steps} of decay"
            yield "scheduler.stable_steps", max(value, 0), why
    elif isinstance(schedule, Decay) and schedule.decay_steps is None:
        why = f"{total} - scheduler.warmup_steps={warmup}"
        yield "scheduler.decay_steps", max(horizon - warmup, 1), why


def follows(schedule: Scheduler, key: str, horizon: int) -> bool:
    """Whether the value of a key of SCHEDULE equals the value derived for an open option."""
    probe, name = copy.deepcopy(schedule), key.rpartition(".")[2]
    probe.thaw()
    setattr(probe, name, None)
    values = {key: value for key, value, _ in open_steps(probe, horizon)}
    return values.get(key) == getattr(schedule, name)


def horizon(schedule: Decay) -> int:
    """Steps spanned by the schedule: warm-up, stable and decay."""
    stable = schedule.stable_steps if isinstance(schedule, WSD) else 0
    return (schedule.warmup_steps or 0) + (schedule.decay_steps or 0) + (stable or 0)


def is_named(step: int, steps: Sequence[int], per_decade: int = 0) -> bool:
    """Whether a step is among `steps`, or among `per_decade` steps of each power of ten: with 3 at
    1, 2, 5, 10, 22, 46, 100, ...
    """
    if step in steps:
        return True
    if not per_decade or step < 1:
        return False
    number = math.log10(step) * per_decade
    near = range(math.floor(number) - 1, math.ceil(number) + 2)
    return any(round(10 ** (k / per_decade)) == step for k in near)
