"""Learning rate schedules: the factor of the peak learning rate at each update.

Each function takes its resolved section and returns `factor(step)`, with the first update as step
0:

    warm-up   step s < W                 (s + 1) / W: never 0, exactly 1 at step W - 1
    stable    the next S steps           1 (wsd only; S = 0 elsewhere)
    decay     the next D steps           floor + (1 - floor) * shape(p), p = (s - W - S + 1) / D
    after                                floor

so the first step of the decay is already below the peak and its last one, s = W + S + D - 1, has
p = 1 and exactly the floor. With ends_at_floor=false, as in nanochat, p = (s - W - S) / D: the
decay begins at the peak, and the floor is a step after its last one. W, S, D and floor are
warmup_steps, stable_steps, decay_steps and min_lr_ratio; every shape falls from 1 at p = 0 to 0 at
p = 1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

import torch

from forge.config.data.mixture import Mix
from forge.config.data.text import Data
from forge.config.optimizers.schedules import WSD, Constant, Cosine, Decay, Linear, NoSchedule, Rex

Schedule = Callable[[int], float]
Shape = Callable[[float], float]


def none(section: NoSchedule) -> Schedule:
    return lambda step: 1.0


def constant(section: Constant) -> Schedule:
    return lambda step: _warmup(section, step)


def cosine(section: Cosine) -> Schedule:
    """Half a cosine: shape (1 + cos(pi p)) / 2 (SGDR without restarts, arXiv:1608.03983)."""
    return _decay(section, SHAPES["cosine"])


def linear(section: Linear) -> Schedule:
    """A straight line: shape 1 - p."""
    return _decay(section, SHAPES["linear"])


def wsd(section: WSD) -> Schedule:
    """Warm-up, stable, decay (arXiv:2404.06395), the decay of shape `wsd_decay_type`.

    `sqrt` is 1 - sqrt(p), published as "1-sqrt" (Hägele et al., arXiv:2405.18392); not sqrt(1 - p).
    """
    assert section.stable_steps is not None, "stable_steps is resolved before a schedule is built"
    return _decay(section, SHAPES[section.wsd_decay_type], stable_steps=section.stable_steps)


def rex(section: Rex) -> Schedule:
    """((1 - p) / (1/2 + (1 - p)/2)) ** rex_alpha: REX (arXiv:2107.04197) with an exponent."""
    return _decay(section, lambda p: ((1 - p) / (0.5 + 0.5 * (1 - p))) ** section.rex_alpha)


SHAPES: dict[str, Shape] = {
    "cosine": lambda p: (1 + math.cos(math.pi * p)) / 2,
    "linear": lambda p: 1 - p,
    "sqrt": lambda p: 1 - math.sqrt(p),
}


def _warmup(section: Constant, step: int) -> float:
    return min(1.0, (step + 1) / section.warmup_steps) if section.warmup_steps else 1.0


def _decay(section: Decay, shape: Shape, *, stable_steps: int = 0) -> Schedule:
    assert section.warmup_steps is not None, "warmup_steps is resolved before a schedule is built"
    assert section.decay_steps is not None, "decay_steps is resolved before a schedule is built"
    start, length = section.warmup_steps + stable_steps, section.decay_steps
    floor, ahead = section.min_lr_ratio, int(section.ends_at_floor)

    def factor(step: int) -> float:
        if step < start:
            return _warmup(section, step)
        return floor + (1 - floor) * shape(min(1.0, (step - start + ahead) / length))

    return factor


class LearningRate:
    """Sets each group's learning rate: the initial rate times the factor of the schedule.

    A group may bring schedules of its own, functions of the number of the update: `schedule`, in
    place of the run's, and `schedules`, factors of other options by name.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Callable[[int], float]) -> None:
        self.optimizer, self.schedule = optimizer, schedule
        # Copies: `set` overwrites the options in the groups.
        self.peaks = [dict(group) for group in optimizer.param_groups]

    def set(self, number: int) -> float:
        """Set the rates for update `number`, from 0; returns the rate of the first group."""
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["number"] = number  # seeds stochastic rounding
            group["lr"] = peak["lr"] * group.get("schedule", self.schedule)(number)
            for option, factor in group.get("schedules", {}).items():
                group[option] = peak[option] * factor(number)
        return self.optimizer.param_groups[0]["lr"]


def scale_by_phase(schedule: Callable[[int], float], data: Data) -> Callable[[int], float]:
    """Multiply a schedule by the `lr_scale` of the mixture's phase at each update."""
    phases = data.schedule() if isinstance(data, Mix) else ()
    if all(phase.lr_scale == 1 for phase in phases):
        return schedule
    starts = [phase.start_step for phase in phases]
    return lambda step: schedule(step) * phases[bisect_right(starts, step) - 1].lr_scale
