"""Ends of a run before its last step: by time, by its metrics or asked for; and hanging ranks."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from forge.config.objectives.base import is_higher_better
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


class StopVote(Callback):
    """Ends the run on all ranks after the same step, once one rank asks.

    A rank asks by `loop.stop` in a user's callback. Takes a message each step. Stands after the
    user's callbacks.
    """

    def __init__(self, session: Session) -> None:
        self.ranks = session.ranks

    def on_start(self, loop: Loop) -> None:
        self._vote(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self._vote(loop)

    def _vote(self, loop: Loop) -> None:
        if self.ranks.any(loop.requested_stop is not None):
            loop.end(next(filter(None, self.ranks.of_all(loop.requested_stop))))


class HealthCheck(Callback):
    """Has each rank report after every `interval`-th update, and names a hanging rank.

    A collective would only time out. Waits for the device. Stands after the user's callbacks,
    where a rank may hang too.
    """

    def __init__(self, session: Session) -> None:
        self.interval = session.config.train.nccl_health_check_interval
        self.ranks = session.ranks

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.train.nccl_health_check_interval > 0

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.interval == 0:
            self.ranks.check_alive(loop.state.step)


class TimeLimit(Callback):
    """Requests a stop after train.max_time minutes of training, over all starts of the run."""

    def __init__(self, session: Session) -> None:
        self.limit = session.config.train.max_time * 60

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.train.max_time > 0

    def requested(self, loop: Loop) -> int:
        return int(loop.clock.total() >= self.limit)

    def act(self, loop: Loop, number: int) -> None:
        loop.end("max_time")


class EarlyStopping(Callback):
    """Stops at the metric's target, or after `patience` evaluations without a gain of min_delta.

    The evaluation at the end of a run does not count, since a prolonged run would not have had one.
    """

    def __init__(self, session: Session) -> None:
        self.section = session.config.eval
        self.best: float | None = None
        self.waited = 0

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.eval.enabled

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        section = self.section
        if loop.state.step % section.interval:
            return
        value, sign = metrics[section.metric], 1 if is_higher_better(section.metric) else -1
        if section.target is not None and sign * value >= sign * section.target:
            loop.end("target")
        better = self.best is None or sign * (value - self.best) > section.min_delta
        if better and not math.isnan(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if section.patience and self.waited >= section.patience:
            loop.end("patience")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]
