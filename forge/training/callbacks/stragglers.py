"""Names the rank that the others wait for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from forge.rundir import pace
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


class Stragglers(Callback):
    """Compares the ranks every `metrics.step_deviation_interval_seconds`, see `forge.rundir.pace`.

    The main rank asks all ranks to write when they came to their last collectives, and reads it a
    step later, when all have; a rank is named if it was slow twice in a row.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        self.interval = session.config.metrics.step_deviation_interval_seconds
        self.ranks, self.run_dir = session.ranks, session.run_dir
        self.asked = time.monotonic()
        self.written_at, self.sentence, self.is_named = -1, "", False

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.ranks.size > 1 and session.config.metrics.monitor_step_time_deviation

    def requested(self, loop: Loop) -> int:
        return int(self.ranks.main and time.monotonic() - self.asked >= self.interval)

    def act(self, loop: Loop, number: int) -> None:
        self.asked, self.written_at = time.monotonic(), loop.state.step
        pace.write_pace(self.run_dir, self.ranks.rank)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.ranks.main and 0 <= self.written_at < loop.state.step:
            self.written_at = -1
            self._judge(pace.straggler(self.run_dir))

    def on_end(self, loop: Loop) -> None:
        pace.remove_pace(self.run_dir, self.ranks.rank)

    def close(self) -> None:
        pace.remove_pace(self.run_dir, self.ranks.rank)

    def _judge(self, sentence: str) -> None:
        before, self.sentence = self.sentence, sentence
        if sentence and before and not self.is_named:
            log.warning("%s", sentence)
            self.is_named = True
        elif not sentence and self.is_named:
            log.warning("no rank is slow any more")
            self.is_named = False
