"""The training loop: updates, the callbacks around each update, counters and clock of the run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from forge.data.batches.loader import Step
from forge.data.batches.source import StepSource
from forge.optim.train_eval_modes import reading
from forge.rundir.wall_clock.ledger import Ledger
from forge.training.callback import Callback, call, callback_name
from forge.training.callbacks.trackers import Trackers
from forge.training.session import Session
from forge.training.step import Update
from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class TrainState:
    """Counts of updates, sequences and target tokens in training so far, over all ranks.

    skipped: skipped updates, counted by `step` too. bad_in_a_row: number of successive non-finite
    updates up to `step`, leaving out updates without a target. Both are up to date after
    `count_skipped`. bad, spikes: not yet reported: the step, and the name of the non-finite value,
    or the report of the spike.
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
        """Keep an update already counted by `step`; does not wait for the device."""
        self.unread.append((self.step, output))

    def count_skipped(self) -> None:
        """Count the skipped updates among the recorded updates; waits for the device."""
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        skips = [output.skipped for _, output in unread]
        # One transfer from the device for all flags.
        flags = torch.stack(skips).tolist() if len(skips) > 1 else [bool(skips[0])]
        for (step, output), skipped in zip(unread, flags, strict=True):
            self.skipped += skipped
            if not output.n_targets:  # no loss to judge as finite or not
                continue
            if skipped and output.judged is not None and output.judged.spikes.any():
                self.spikes.append((step, output.judged.told()))
                skipped = False
            self.bad_in_a_row = self.bad_in_a_row + 1 if skipped else 0
            if skipped:
                subject = "gradient norm" if math.isfinite(output.loss.item()) else "loss"
                self.bad.append((step, subject))

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.init}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for entry in fields(self):
            if entry.init:
                setattr(self, entry.name, state[entry.name])


class Clock:
    """Seconds of training, without pauses. before: seconds of earlier starts of the run."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0.0
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()
        self._paused_seconds = 0.0
        self._paused_at: float | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside this context out of the count."""
        # Queued work of the device still counts as training.
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
        """Seconds since the start."""
        return (self._paused_at or time.perf_counter()) - self._started - self._paused_seconds

    def total(self) -> float:
        """Seconds over all starts of the run."""
        return self.before + self.seconds()


class Moments:
    """Calls callbacks in order; subclassed by the loop, and passed to callbacks as the loop."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks, self.state = list(callbacks), TrainState()
        self._acting: dict[str, list[Callback]] = {}

    def acting_at(self, moment: str) -> list[Callback]:
        """The callbacks overriding a moment, or another method."""
        if moment not in self._acting:
            idle = getattr(Callback, moment)
            methods = ((callback, getattr(callback, moment)) for callback in self.callbacks)
            # A method set on the object has no __func__, and counts as an override.
            self._acting[moment] = [
                callback
                for callback, method in methods
                if getattr(method, "__func__", None) is not idle
            ]
        return self._acting[moment]

    def call(self, moment: str, *arguments: Any) -> None:
        """Let every callback act at a moment; on the thread of the loop."""
        for callback in self.acting_at(moment):
            call(callback, moment, self.state.step, self, *arguments)

    def requests(self) -> list[tuple[Callback, int]]:
        """Each callback's request from this rank to all ranks."""
        asked = self.acting_at("requested")
        return [
            (callback, call(callback, "requested", self.state.step, self)) for callback in asked
        ]

    def requested(self) -> bool:
        """Whether there is a request."""
        return any(number for _, number in self.requests())

    def results(self) -> dict[str, float]:
        """Metrics of all callbacks for result.json."""
        metrics: dict[str, float] = {}
        for callback in self.acting_at("results"):
            metrics |= call(callback, "results", self.state.step)
        return metrics

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
        """Call a method, even after an earlier error; a later error is only a warning."""
        try:
            call(callback, method, self.state.step, *arguments)
        except BaseException as error:
            if first is None:
                return error
            name, kind = callback_name(callback), type(error).__name__
            log.warning("%s failed in %s too: %s: %s", name, method, kind, error)
        return first


class Loop(Moments):
    """Makes updates until `end_step`, or until a callback calls `stop` or `interrupt`.

    Callbacks may use: session, model, optimizer, config, run_dir, state, log, stop, interrupt,
    stop_reason, paused, reading and ending.
    """

    def __init__(
        self,
        session: Session,
        *,
        update: Update,
        loader: StepSource,
        trackers: Trackers,
        callbacks: Sequence[Callback],
        votes: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        """votes: whether `stop` waits for a vote of all ranks, see `StopVote`. ledger: names the
        seconds of this start.
        """
        super().__init__(callbacks)
        self.session, self.config, self.run_dir = session, session.config, session.run_dir
        self.model, self.optimizer = session.model, session.optimizer
        self.update, self.loader, self.trackers = update, loader, trackers
        self.votes, self.ledger = votes, ledger or Ledger()
        self.end_step = session.config.train.max_steps
        self.clock = Clock(session.device)
        self.stop_reason: str | None = None
        self.requested_stop: str | None = None
        self.interrupted = False
        self.fault: str | None = None

    def log(self, values: Mapping[str, Any]) -> None:
        """Give metrics by name to all trackers, at the current step; waits for tensors."""
        self.trackers.log(self.state.step, {name: float(value) for name, value in values.items()})

    def run(self, report: Callable[[BaseException], object] = lambda error: None) -> str:
        """Train, close every callback in any case, and return the reason of the end.

        report: told of an error before callbacks close, since closing may wait for lost ranks. The
        first error is raised; later failures are warnings.
        """
        error: BaseException | None = None
        try:
            self._run()
        except BaseException as raised:
            error = raised
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
        self.ledger.begin(self.state.step)
        if not self.ending:
            self._step(self._next(steps))
            self.session.ranks.after_first_step()
        while not self.ending:
            self._step(self._next(steps))
        self.stop_reason = self.stop_reason or "end"
        self.ledger.enter("end")
        self.call("on_end")

    def _next(self, steps: Iterator[Step]) -> Step:
        """Wait for the data of a step; a rollout is no waiting for data."""
        before = sum(self.loader.parts.values())
        self.ledger.enter("data_wait")
        step = next(steps)
        self.ledger.enter("step")
        if rolled_out := sum(self.loader.parts.values()) - before:
            self.ledger.rename("data_wait", "rollout", rolled_out)
        return step

    def _step(self, step: Step) -> None:
        """Make one update, with the callbacks around it."""
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
        self.ledger.step(state.step)

    def paused(self) -> AbstractContextManager[None]:
        """A context whose time does not count as training."""
        return self.clock.paused()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A paused context, with the weights for evaluating and saving."""
        with self.paused(), reading(self.model, self.optimizer):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A paused context, with the weights that eval.weights names."""
        with self.ledger.long_span("evaluation"), self.reading(), ExitStack() as stack:
            for callback in self.acting_at("evaluated_weights"):
                step = self.state.step
                stack.enter_context(call(callback, "evaluated_weights", step, self))
            yield

    @property
    def ending(self) -> bool:
        """Whether no further update follows; callbacks after the asking one may still act."""
        return self.stop_reason is not None or self.state.step >= self.end_step

    def stop(self, reason: str) -> None:
        """End the run at this step boundary, on all ranks. The first reason counts."""
        self.requested_stop = self.requested_stop or reason
        if not self.votes:
            self.end(reason)

    def end(self, reason: str, *, fault: str | None = None) -> None:
        """End the run at this step boundary, called by all ranks. fault: reason of a failure."""
        self.stop_reason, self.fault = self.stop_reason or reason, self.fault or fault

    def interrupt(self, reason: str) -> None:
        """Stop on a signal, without the evaluations and samples of a run's end."""
        self.interrupted = True
        self.stop_reason = reason
