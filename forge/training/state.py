"""What a run has done so far: its counters."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from forge.training.step import StepOutput


class BadStep(NamedTuple):
    """A step whose update was skipped, and what was not finite: "loss" or "gradient norm"."""

    step: int
    what: str


@dataclass(kw_only=True)
class TrainState:
    """Counters of trained-on data, in updates, sequences and target tokens, over all ranks.

    skipped: updates that were skipped, which `step` counts too; bad_in_a_row: how many of them end
    at `step`. Both are up to date after `count_skipped`. bad: the skipped ones not reported yet.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    bad: list[BadStep] = field(default_factory=list, init=False)
    unread: list[tuple[int, StepOutput]] = field(default_factory=list, init=False)

    def record(self, output: StepOutput) -> None:
        """Keep an update, which `step` counts already; does not wait for the device."""
        self.unread.append((self.step, output))

    def count_skipped(self) -> None:
        """Count the skipped updates among those recorded; waits for the device."""
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        flags = torch.stack([output.skipped for _, output in unread]).tolist()
        for (step, output), skipped in zip(unread, flags, strict=True):
            self.bad_in_a_row = self.bad_in_a_row + 1 if skipped else 0
            if skipped:
                self.skipped += 1
                what = "gradient norm" if math.isfinite(output.loss.item()) else "loss"
                self.bad.append(BadStep(step, what))

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        return {name: getattr(self, name) for name in self._counters()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self._counters():
            setattr(self, name, state[name])

    def _counters(self) -> list[str]:
        return [field.name for field in dataclasses.fields(self) if field.init]
