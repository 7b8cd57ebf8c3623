"""The loop: update after update, with callbacks around them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from forge.data.loader import TrainLoader
from forge.training.callback import Callback
from forge.training.state import TrainState
from forge.training.step import Update


class Loop:
    """Updates until `end_step`, or until a callback calls `stop`."""

    def __init__(self, *, update: Update, loader: TrainLoader, state: TrainState, callbacks: Sequence[Callback], end_step: int) -> None:
        self.update, self.loader, self.state, self.callbacks, self.end_step = update, loader, state, callbacks, end_step
        self.stop_reason: str | None = None
        self.started = time.perf_counter()
        self.paused_seconds = 0.0

    def run(self) -> str:
        """Train, and return why it ended."""
        for callback in self.callbacks:
            callback.on_start(self)
        state = self.state
        steps = iter(self.loader)
        while state.step < self.end_step and self.stop_reason is None:
            step = next(steps)
            output = self.update(step, state.step)
            state.step += 1
            state.samples = self.loader.samples
            state.tokens += step.n_targets
            for callback in self.callbacks:
                callback.on_step_end(self, output)
        self.stop_reason = self.stop_reason or "end"
        for callback in self.callbacks:
            callback.on_end(self)
        return self.stop_reason

    def stop(self, reason: str) -> None:
        """End the run at this step boundary; the first reason given is the one reported."""
        self.stop_reason = self.stop_reason or reason

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Tell every callback the result of an evaluation."""
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count as training."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.paused_seconds += time.perf_counter() - begin

    def training_seconds(self) -> float:
        """Seconds since the loop was made, less those paused."""
        return time.perf_counter() - self.started - self.paused_seconds
