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
from forge.training.callback import Callback, blaming, name_of
from forge.training.state import TrainState
from forge.training.step import Update

logger = logging.getLogger(__name__)


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
        of all ranks.
        """
        self.update, self.loader, self.state, self.callbacks, self.end_step = (
            update,
            loader,
            state,
            callbacks,
            end_step,
        )
        self.config, self.run_dir, self.report, self.votes = config, run_dir, report, votes
        self.stop_reason: str | None = None
        self.wished: str | None = None
        self.interrupted = False
        self.started = time.perf_counter()
        self.paused_seconds = 0.0
        self.paused_at: float | None = None
        self.seconds_before = 0.0
        self.on_failure: Callable[[BaseException], object] = lambda error: None
        self._acting: dict[str, list[Callback]] = {}

    @property
    def model(self) -> nn.Module:
        """The module that is trained."""
        return self.update.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What updates it."""
        return self.update.optimizer

    def log(self, values: Mapping[str, Any]) -> None:
        """Give metrics by name to all trackers, at the current step; to read one that is a tensor
        waits for the device.
        """
        self.report(self.state.step, {name: float(value) for name, value in values.items()})

    def run(self) -> str:
        """Train, close every callback whatever happens, the last one first, and return why it
        ended.

        The first error is the one raised; what fails after it is a warning.
        """
        first: BaseException | None = None
        try:
            self._run()
        except BaseException as error:
            first = error
            self.on_failure(error)  # before callbacks close, which may wait for ranks that are gone
        first = self._close(first)
        if first is not None:
            raise first
        assert self.stop_reason is not None
        return self.stop_reason

    def _run(self) -> None:
        self.started = time.perf_counter()
        self._acting.clear()
        self._tell("on_start")
        self.update.on_gradients = (
            (lambda: self._tell("on_gradients")) if self._who("on_gradients") else None
        )
        state = self.state
        steps = iter(self.loader)
        while not self.ending:
            step = next(steps)
            self._tell("on_step_start")
            output = self.update(step, state.step)
            state.step += 1
            state.samples = self.loader.samples
            state.tokens += step.n_targets
            self._tell("on_step_end", output)
        self.stop_reason = self.stop_reason or "end"
        self._tell("on_end")

    def _close(self, first: BaseException | None) -> BaseException | None:
        """Close all; returns the first error of the run."""
        for owner in [*reversed(self.callbacks), self.loader]:
            try:
                if isinstance(owner, Callback):
                    with blaming(owner, "close", self.state.step):
                        owner.close()
                else:
                    owner.close()
            except BaseException as error:
                if first is None:
                    first = error
                else:
                    name = name_of(owner) if isinstance(owner, Callback) else "the loader"
                    logger.warning(
                        "%s could not be closed either: %s: %s", name, type(error).__name__, error
                    )
        return first

    def _who(self, moment: str) -> list[Callback]:
        """The callbacks that act at a moment, in order."""
        if moment not in self._acting:
            idle = getattr(Callback, moment)
            self._acting[moment] = [
                one
                for one in self.callbacks
                if getattr(getattr(one, moment), "__func__", None) is not idle
            ]
        return self._acting[moment]

    def listens(self, *moments: str) -> bool:
        """Whether any callback acts at one of these moments."""
        return any(self._who(moment) for moment in moments)

    def _tell(self, moment: str, *arguments: Any) -> None:
        for callback in self._who(moment):
            with blaming(callback, moment, self.state.step):
                getattr(callback, moment)(self, *arguments)

    @property
    def ending(self) -> bool:
        """Whether no further update follows; settled for a step once every callback before the one
        that asks has seen its end.
        """
        return self.stop_reason is not None or self.state.step >= self.end_step

    def stop(self, reason: str) -> None:
        """End the run at this step boundary; of several ranks any one may call it, and all end
        together. The first reason counts.
        """
        self.wished = self.wished or reason
        if not self.votes:
            self.end(reason)

    def end(self, reason: str) -> None:
        """The same, when all ranks call it after the same step."""
        self.stop_reason = self.stop_reason or reason

    def interrupt(self, reason: str) -> None:
        """Stop in a hurry, on the signal that `reason` names: nothing at the end that a run which
        goes on later does not need.
        """
        self.interrupted = True
        self.stop_reason = reason

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Tell every callback the result of an evaluation."""
        self._tell("on_evaluation", metrics)

    def checkpointed(self, path: Path) -> None:
        """Tell every callback that a checkpoint is complete; call it on the thread of the loop."""
        self._tell("on_checkpoint", path)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count as training; that of updates a GPU still works at does."""
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
