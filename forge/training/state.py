"""The counters of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from forge.training.step import StepOutput


@dataclass(kw_only=True)
class TrainState:
    """Updates, sequences and target tokens that were trained on, over all ranks.

    skipped: updates that were skipped, which `step` counts too; bad_in_a_row: how many of them end
    at `step` that were not finite, those without a target left out. Both are up to date after
    `count_skipped`. bad, spikes: those not reported yet: the step, and what was not finite, or what
    is told of the spike.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list, init=False)
    spikes: list[tuple[int, str]] = field(default_factory=list, init=False)
    unread: list[tuple[int, StepOutput]] = field(default_factory=list, init=False)

    def record(self, output: StepOutput) -> None:
        """Keep the update that `step` counts already; does not wait for the device."""
        self.unread.append((self.step, output))

    def count_skipped(self) -> None:
        """Count the skipped updates among those recorded; waits for the device."""
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        flags = torch.stack([output.skipped for _, output in unread]).tolist()
        for (step, output), skipped in zip(unread, flags, strict=True):
            self.skipped += skipped
            if not output.n_targets:  # says nothing of what is finite
                continue
            if skipped and output.judged is not None and output.judged.spikes.any():
                self.spikes.append((step, output.judged.told()))
                skipped = False
            self.bad_in_a_row = self.bad_in_a_row + 1 if skipped else 0
            if skipped:
                what = "gradient norm" if math.isfinite(output.loss.item()) else "loss"
                self.bad.append((step, what))

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        return {one.name: getattr(self, one.name) for one in fields(self) if one.init}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for one in fields(self):
            if one.init:
                setattr(self, one.name, state[one.name])
