"""A callback: forge calls its methods at the moments that they are named by."""

from __future__ import annotations

import math
from typing import Any

from forge.api import Callback, Loop


class LowestLoss(Callback):
    """Keeps the lowest loss of all evaluations and the step that it was at."""

    def __init__(self) -> None:
        self.loss, self.step = math.inf, 0

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        if metrics["loss"] < self.loss:
            self.loss, self.step = metrics["loss"], loop.state.step

    def results(self) -> dict[str, float]:
        return {"lowest_loss": self.loss, "lowest_loss_step": self.step} if self.step else {}

    def state_dict(self) -> dict[str, Any]:
        return {"loss": self.loss, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loss, self.step = state["loss"], state["step"]
