"""The learning rate of each group of parameters, over the steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import torch

from forge.config.data.mixture import Mix
from forge.config.data.text import Data


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


def scaled(schedule: Callable[[int], float], data: Data) -> Callable[[int], float]:
    """Multiply a schedule by the `lr_scale` of the mixture's phase at each update."""
    phases = data.schedule() if isinstance(data, Mix) else ()
    if all(phase.lr_scale == 1 for phase in phases):
        return schedule
    starts = [phase.start_step for phase in phases]
    return lambda step: schedule(step) * phases[bisect_right(starts, step) - 1].lr_scale
