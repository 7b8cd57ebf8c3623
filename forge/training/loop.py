"""The training loop: update after update, callbacks around them, counters and clock of the run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from forge.data.batches.loader import Step, TrainLoader
from forge.optim.train_eval_modes import reading
from forge.training.callback import Callback, call, name_of
from forge.training.callbacks.trackers import Trackers
from forge.training.session import Session
from forge.training.step import Update
from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


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


class Clock:
    """Seconds of training, those paused left out. before: those of earlier starts of the run."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0.0
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()
        self._paused_seconds = 0.0
        self._paused_at: float | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count."""
        torch.get_device_module(self.device).synchronize()
        begin = time.perf_counter()
        outer, self._paused_at = self._paused_at, self._paused_at or begin
        try:
            yield
        finally:
            self._paused_at = outer
            if outer is None:
                self._paused_seconds += time.perf_counter() - begin

    def seconds(self) -> float:
        """Since the start."""
        return (self._paused_at or time.perf_counter()) - self._started - self._paused_seconds

    def total(self) -> float:
        """Over all starts of the run."""
        return self.before + self.seconds()


class Moments:
    """Calls callbacks in their order; a loop, to them."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks, self.state = list(callbacks), TrainState()
        self._acting: dict[str, list[Callback]] = {}

    def acting_at(self, moment: str) -> list[Callback]:
        """Those that override a moment, or another method."""
        if moment not in self._acting:
            idle = getattr(Callback, moment)
            methods = ((one, getattr(one, moment)) for one in self.callbacks)
            self._acting[moment] = [
                one for one, method in methods if getattr(method, "__func__", None) is not idle
            ]
        return self._acting[moment]

    def call(self, moment: str, *arguments: Any) -> None:
        """Every callback acts at this moment; on the thread of the loop."""
        for callback in self.acting_at(moment):
            call(callback, moment, self.state.step, self, *arguments)

    def requests(self) -> list[tuple[Callback, int]]:
        """What each callback of this rank asks of all ranks."""
        asked = self.acting_at("requested")
        return [(one, call(one, "requested", self.state.step, self)) for one in asked]

    def requested(self) -> bool:
        """Whether there is a request."""
        return any(number for _, number in self.requests())

    def results(self) -> dict[str, float]:
        """What all callbacks have for result.json."""
        found: dict[str, float] = {}
        for callback in self.acting_at("results"):
            found |= call(callback, "results", self.state.step)
        return found

    def close(self, error: BaseException | None) -> BaseException | None:
        """Tell callbacks of an error, and close all, the last first; returns the first error."""
        for callback in self.callbacks if error is not None else []:
            error = self._attempt(error, callback, "on_failure", self, error)
        for callback in reversed(self.callbacks):
            error = self._attempt(error, callback, "close")
        return error

    def _attempt(
        self, first: BaseException | None, callback: Callback, method: str, *arguments: Any
    ) -> BaseException | None:
        """Call a method, whatever was raised before; what it raises then is a warning."""
        try:
            call(callback, method, self.state.step, *arguments)
        except BaseException as error:
            if first is None:
                return error
            name, kind = name_of(callback), type(error).__name__
            log.warning("%s failed in %s too: %s: %s", name, method, kind, error)
        return first


class Loop(Moments):
    """Updates until `end_step`, or until a callback calls `stop` or `interrupt`.

    What callbacks may use: session, model, optimizer, config, run_dir, state, log, stop, interrupt,
    stop_reason, paused, reading and ending.
    """

    def __init__(
        self,
        session: Session,
        *,
        update: Update,
        loader: TrainLoader,
        trackers: Trackers,
        callbacks: Sequence[Callback],
        votes: bool = False,
    ) -> None:
        """votes: whether `stop` waits for a vote of all ranks, see `StopVote`."""
        super().__init__(callbacks)
        self.session, self.config, self.run_dir = session, session.config, session.run_dir
        self.model, self.optimizer = session.model, session.optimizer
        self.update, self.loader, self.trackers = update, loader, trackers
        self.votes = votes
        self.end_step = session.config.train.max_steps
        self.clock = Clock(session.device)
        self.stop_reason: str | None = None
        self.requested_stop: str | None = None
        self.interrupted = False
        self.fault: str | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        """Give metrics by name to all trackers, at the current step; a tensor is waited for."""
        self.trackers.log(self.state.step, {name: float(value) for name, value in values.items()})

    def run(self, report: Callable[[BaseException], object] = lambda error: None) -> str:
        """Train, close every callback whatever happens, and return why it ended.

        report: told of an error before callbacks close, which may wait for ranks that are gone. The
        first error is the one raised; what fails after it is a warning.
        """
        error: BaseException | None = None
        try:
            self._run()
        except BaseException as found:
            error = found
            report(error)
        error = self.close(error)
        self.loader.close()
        if error is not None:
            raise error
        assert self.stop_reason is not None
        return self.stop_reason

    def _run(self) -> None:
        self.clock.start()
        self._acting.clear()
        self.call("on_start")
        steps = iter(self.loader)
        while not self.ending:
            self._step(next(steps))
        self.stop_reason = self.stop_reason or "end"
        self.call("on_end")

    def _step(self, step: Step) -> None:
        """One update, and what callbacks do around it."""
        state, update = self.state, self.update
        self.call("on_step_start")
        read = any(callback.reads_gradients for callback in self.acting_at("on_gradients"))
        output = update.gradients(step, state.step, request=self.requested, read=read)
        self.call("on_gradients")
        update.apply(output, state.step)
        state.step += 1
        state.samples = self.loader.samples
        state.tokens += step.n_tokens
        self.call("on_step_end", output)

    def paused(self) -> AbstractContextManager[None]:
        """Time spent in it does not count as training."""
        return self.clock.paused()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Paused, with the weights that are evaluated and saved."""
        with self.paused(), reading(self.model, self.optimizer):
            yield

    @property
    def ending(self) -> bool:
        """Whether no further update follows; callbacks behind the one that asks may end it too."""
        return self.stop_reason is not None or self.state.step >= self.end_step

    def stop(self, reason: str) -> None:
        """End the run at this step boundary, on all ranks. The first reason counts."""
        self.requested_stop = self.requested_stop or reason
        if not self.votes:
            self.end(reason)

    def end(self, reason: str, *, fault: str | None = None) -> None:
        """The same, called by all ranks. fault: why the run has failed."""
        self.stop_reason, self.fault = self.stop_reason or reason, self.fault or fault

    def interrupt(self, reason: str) -> None:
        """Stop on a signal, without what a run that goes on does not need."""
        self.interrupted = True
        self.stop_reason = reason
