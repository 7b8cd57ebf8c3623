"""The loop: update after update, with callbacks around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from forge.data.loader import Step, TrainLoader
from forge.optim.modes import reading
from forge.training.callback import Callback
from forge.training.clock import Clock
from forge.training.moments import Moments
from forge.training.session import Session
from forge.training.step import Update
from forge.training.trackers import Trackers


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
        if not any(one.reads_gradients for one in self.acting_at("on_gradients")):
            self.update.fold_clipping()
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
        output = update.gradients(step, state.step, request=self.requested)
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
        """Paused, with the weights that are evaluated and saved, see `forge.optim.modes`."""
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
