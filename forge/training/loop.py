"""The loop: update after update, with callbacks around them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from forge.data.loader import TrainLoader
from forge.training.callback import Callback
from forge.training.state import TrainState
from forge.training.step import Update


class Loop:
    """Updates until `end_step`, or until a callback calls `stop` or `interrupt`."""

    def __init__(self, *, update: Update, loader: TrainLoader, state: TrainState, callbacks: Sequence[Callback], end_step: int) -> None:
        self.update, self.loader, self.state, self.callbacks, self.end_step = update, loader, state, callbacks, end_step
        self.stop_reason: str | None = None
        self.interrupted = False
        self.started = time.perf_counter()
        self.paused_seconds = 0.0

    def run(self) -> str:
        """Train, close every callback whatever happens, the last one first, and return why it ended."""
        with ExitStack() as stack:
            stack.callback(self.loader.close)
            for callback in self.callbacks:
                stack.callback(callback.close)
            return self._run()

    def _run(self) -> str:
        self.started = time.perf_counter()
        for callback in self.callbacks:
            callback.on_start(self)
        state = self.state
        steps = iter(self.loader)
        while not self.ending:
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

    @property
    def ending(self) -> bool:
        """Whether no further update follows; settled for a step once every callback before the one that asks has seen its end."""
        return self.stop_reason is not None or self.state.step >= self.end_step

    def stop(self, reason: str) -> None:
        """End the run at this step boundary; the first reason given is the one reported."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, reason: str) -> None:
        """Stop in a hurry: nothing at the end that a run which goes on later does not need."""
        self.interrupted = True
        self.stop(reason)

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Tell every callback the result of an evaluation."""
        for callback in self.callbacks:
            callback.on_evaluation(self, metrics)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count as training; that of updates a GPU still works at does."""
        device = self.update.autocast.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.paused_seconds += time.perf_counter() - begin

    def training_seconds(self) -> float:
        """Seconds since the start of the run, less those paused."""
        return time.perf_counter() - self.started - self.paused_seconds
