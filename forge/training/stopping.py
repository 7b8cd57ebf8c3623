"""Reasons to stop before the last step: time, a target, no improvement, a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from forge.config.eval import Eval
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput

HIGHER_IS_BETTER = frozenset({"token_accuracy"})


class TimeLimit(Callback):
    """Stops after `minutes` of training; evaluation and checkpoints do not count. Resumed time does."""

    def __init__(self, minutes: float) -> None:
        self.limit = minutes * 60
        self.before = 0.0
        self.used = 0.0

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.used = self.before + loop.training_seconds()
        if self.used >= self.limit:
            loop.stop("max_time")

    def state_dict(self) -> dict[str, Any]:
        return {"used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["used"]


class EarlyStopping(Callback):
    """Stops once the metric reaches its target, or has not improved by min_delta for `patience` evaluations."""

    def __init__(self, section: Eval) -> None:
        self.section = section
        self.best: float | None = None
        self.waited = 0

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        section, value = self.section, metrics[self.section.metric]
        sign = 1 if section.metric in HIGHER_IS_BETTER else -1
        if section.target is not None and sign * value >= sign * section.target:
            loop.stop("target")
        if self.best is None or sign * (value - self.best) > section.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if section.patience and self.waited >= section.patience:
            loop.stop("patience")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class Signals(Callback):
    """SIGTERM, SIGINT, SIGUSR1 and SIGUSR2: finish the step, save, end. A second one, or a stop that takes too long, ends at once."""

    NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.received: int | None = None
        self.previous: dict[int, Any] = {}
        self.deadline: threading.Timer | None = None

    def on_start(self, loop: Loop) -> None:
        if threading.current_thread() is threading.main_thread():
            self.previous = {number: signal.signal(number, self._handle) for number in self.NUMBERS}

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.received is not None:
            loop.stop(signal.Signals(self.received).name)

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if self.deadline is not None:
            self.deadline.cancel()

    def _handle(self, number: int, frame: Any) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number
        sys.stderr.write(f"\n{signal.Signals(number).name}: finishing this step, then saving; once more ends at once\n")
        self.deadline = threading.Timer(self.timeout, os._exit, (128 + number,))
        self.deadline.daemon = True
        self.deadline.start()
