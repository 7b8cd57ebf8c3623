"""Outputs of steps added up from one log to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.training.step_output import StepOutput

OF_SOURCE = ("ce/", "targets/")


@dataclass(kw_only=True)
class Gathered:
    """Sums over the steps since the last log as plain numbers, without skipped updates.

    kept: steps with an update, or without a target. empty: steps without a target. sums: sums over
    target tokens. of_steps: sums over steps of values given once a step.
    """

    steps: int = 0
    kept: int = 0
    empty: int = 0
    targets: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    of_steps: dict[str, float] = field(default_factory=dict)
    grad_norm: float = math.nan
    lr: float = math.nan

    def add(self, output: StepOutput) -> None:
        skipped = bool(output.n_targets) and output.skipped.item()
        self.steps += 1
        self.kept += not skipped
        self.empty += not output.n_targets
        self.targets += 0 if skipped else output.n_targets
        for sums, values in ((self.sums, output.sums), (self.of_steps, output.means)):
            for name, value in values.items():
                left_out = skipped or (sums is self.sums and not output.n_targets)
                sums[name] = sums.get(name, 0.0) + (0.0 if left_out else value.item())
        self.grad_norm, self.lr = output.grad_norm.item(), output.lr

    def losses(self) -> dict[int, float]:
        """Mean loss of each source of a mixture with targets."""
        counts = {name: n for name, n in self.sums.items() if name.startswith("targets/") and n}
        numbers = {name: int(name.removeprefix("targets/")) for name in counts}
        return {n: self.sums[f"ce/{n}"] / counts[name] for name, n in numbers.items()}

    def means(self, counts: Mapping[str, str] = MappingProxyType({})) -> dict[str, float]:
        """Means over the target tokens of the updates made, or over the updates; NaN without any.

        counts: as in `Objective`.
        """
        targets = self.targets if self.kept else 0
        parts, means = ((self.sums, targets), (self.of_steps, self.kept)), {}
        for sums, count in parts:
            for name in sorted(sums.keys() - set(counts.values())):
                if not name.startswith(OF_SOURCE):
                    size = sums[counts[name]] if name in counts else count
                    means[name] = sums[name] / size if size else math.nan
        return means
