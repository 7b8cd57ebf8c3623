"""Signs of finished steps, for observers outside of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.rundir.signs import Steps
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step import StepOutput


class StepSigns(Callback):
    """Marks each finished step of a rank in RUN/alive, until the last step."""

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        self.steps = Steps(session.run_dir, session.ranks.rank)

    def on_start(self, loop: Loop) -> None:
        self.steps.begin(loop.state.step)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.steps.finished(loop.state.step)

    def on_end(self, loop: Loop) -> None:
        self.steps.end()

    def close(self) -> None:
        self.steps.end()
