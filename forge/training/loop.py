"""The loop: update after update, with callbacks around them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge.config.root import Config
from forge.data.loader import TrainLoader
from forge.training.callback import Callback, name_of, naming
from forge.training.state import TrainState
from forge.training.step import Update

log = logging.getLogger(__name__)


class Loop:
    """Updates until `end_step`, or until a callback calls `stop` or `interrupt`.

    What callbacks may use: model, optimizer, config, run_dir, state, log, stop, interrupt,
    stop_reason, paused and ending.
    """

    def __init__(
        self,
        *,
        update: Update,
        loader: TrainLoader,
        state: TrainState,
        callbacks: Sequence[Callback],
        end_step: int,
        config: Config,
        run_dir: Path,
        report: Callable[[int, dict[str, float]], None],
        votes: bool = False,
    ) -> None:
        """report: takes a step and metrics for the trackers. votes: whether `stop` waits for a vote
        of all ranks, see `StopVote`.
        """
        self.update, self.loader, self.state, self.callbacks = update, loader, state, callbacks
        self.end_step, self.config, self.run_dir = end_step, config, run_dir
        self.report, self.votes = report, votes
        self.stop_reason: str | None = None
        self.requested_stop: str | None = None
        self.interrupted = False
        self.started = time.perf_counter()
        self.paused_seconds = 0.0
        self.paused_at: float | None = None
        self.seconds_before = 0.0
        self.on_failure: Callable[[BaseException], object] = lambda error: None
        self._acting: dict[str, list[Callback]] = {}

    @property
    def model(self) -> nn.Module:
        return self.update.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.update.optimizer

    def log(self, values: Mapping[str, Any]) -> None:
        """Give metrics by name to all trackers, at the current step; a tensor is waited for."""
        self.report(self.state.step, {name: float(value) for name, value in values.items()})

    def run(self) -> str:
        """Train, close every callback whatever happens, and return why it ended.

        The first error is the one raised; what fails after it is a warning.
        """
        error: BaseException | None = None
        try:
            self._run()
        except BaseException as found:
            error = found
            self.on_failure(error)  # before callbacks close, which may wait for ranks that are gone
        error = self._close(error)
        if error is not None:
            raise error
        assert self.stop_reason is not None
        return self.stop_reason

    def _run(self) -> None:
        self.started = time.perf_counter()
        self._acting.clear()
        self.call("on_start")
        if self.has("on_gradients"):
            self.update.on_gradients = lambda: self.call("on_gradients")
        state = self.state
        steps = iter(self.loader)
        while not self.ending:
            step = next(steps)
            self.call("on_step_start")
            output = self.update(step, state.step)
            state.step += 1
            state.samples = self.loader.samples
            state.tokens += step.n_tokens
            self.call("on_step_end", output)
        self.stop_reason = self.stop_reason or "end"
        self.call("on_end")

    def _close(self, first: BaseException | None) -> BaseException | None:
        """Close all, the last callback first; returns the first error of the run."""
        for owner in [*reversed(self.callbacks), self.loader]:
            try:
                if isinstance(owner, Callback):
                    with naming(owner, "close", self.state.step):
                        owner.close()
                else:
                    owner.close()
            except BaseException as error:
                if first is None:
                    first = error
                    continue
                name = name_of(owner) if isinstance(owner, Callback) else "the loader"
                kind = type(error).__name__
                log.warning("%s could not be closed either: %s: %s", name, kind, error)
        return first

    def _acting_at(self, moment: str) -> list[Callback]:
        """The callbacks that override a moment, in order."""
        if moment not in self._acting:
            idle = getattr(Callback, moment)
            methods = ((one, getattr(one, moment)) for one in self.callbacks)
            self._acting[moment] = [
                one for one, method in methods if getattr(method, "__func__", None) is not idle
            ]
        return self._acting[moment]

    def has(self, *moments: str) -> bool:
        return any(self._acting_at(moment) for moment in moments)

    def call(self, moment: str, *arguments: Any) -> None:
        """Every callback acts at this moment; on the thread of the loop."""
        for callback in self._acting_at(moment):
            with naming(callback, moment, self.state.step):
                getattr(callback, moment)(self, *arguments)

    @property
    def ending(self) -> bool:
        """Whether no further update follows; callbacks behind the one that asks may end it too."""
        return self.stop_reason is not None or self.state.step >= self.end_step

    def stop(self, reason: str) -> None:
        """End the run at this step boundary, on all ranks. The first reason counts."""
        self.requested_stop = self.requested_stop or reason
        if not self.votes:
            self.end(reason)

    def end(self, reason: str) -> None:
        """The same, called by all ranks."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, reason: str) -> None:
        """Stop on a signal, without what a run that goes on does not need."""
        self.interrupted = True
        self.stop_reason = reason

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count as training."""
        device = self.update.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        outer, self.paused_at = self.paused_at, self.paused_at or begin
        try:
            yield
        finally:
            self.paused_at = outer
            if outer is None:
                self.paused_seconds += time.perf_counter() - begin

    def training_seconds(self) -> float:
        """Seconds since the start of the run, less those paused."""
        return (self.paused_at or time.perf_counter()) - self.started - self.paused_seconds
