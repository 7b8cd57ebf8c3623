"""The learning rate of each group of parameters, over the steps."""

from __future__ import annotations

from collections.abc import Callable

import torch


class LearningRate:
    """Gives each group the rate it was made with times the factor of its schedule.

    A group may bring a schedule of its own: `schedule`, a function of the number of the update.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Callable[[int], float]) -> None:
        self.optimizer, self.schedule = optimizer, schedule
        self.peaks = [group["lr"] for group in optimizer.param_groups]

    def set(self, number: int) -> float:
        """For update `number`, from 0; returns the rate of the first group."""
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * group.get("schedule", self.schedule)(number)
        return self.optimizer.param_groups[0]["lr"]
