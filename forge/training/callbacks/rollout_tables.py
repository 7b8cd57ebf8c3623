"""Tables of completions with their rewards, for trackers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from forge.config.rollouts.rollout import SampledRollout
from forge.rollouts.source import Rollouts
from forge.rundir.rollouts import table_rows
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

NAME = "train/completions"


class RolloutTables(Callback):
    """Gives trackers the first completions of the rollout at hand, at every log."""

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        rollout = session.config.rollout
        assert isinstance(rollout, SampledRollout)
        self.count, self.interval = rollout.table_rows, session.config.metrics.log_interval

    @classmethod
    def wanted(cls, session: Session) -> bool:
        rollout = session.config.rollout
        return isinstance(rollout, SampledRollout) and bool(rollout.table_rows)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        loader = loop.loader
        if loop.state.step % self.interval or not isinstance(loader, Rollouts):
            return
        rows = table_rows(asdict(row) for row in loader.written()[: self.count])
        if rows:
            loop.trackers.table(loop.state.step, NAME, rows)
