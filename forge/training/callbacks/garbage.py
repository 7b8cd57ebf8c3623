"""Python's garbage collection at fixed steps."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

YOUNG = 1  # generations 0 and 1: objects since the last collection


class Garbage(Callback):
    """Collects garbage after every `train.gc_interval` steps, and not in between.

    Automatic collection falls on different steps on each rank, and all ranks wait for each. Objects
    present at the start of a run are left out.
    """

    def __init__(self, session: Session) -> None:
        self.interval, self.was_on = session.config.train.gc_interval, False

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.train.gc_interval > 0

    def on_start(self, loop: Loop) -> None:
        self.was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.interval == 0:
            gc.collect(YOUNG)

    def close(self) -> None:
        if self.was_on:
            gc.enable()
            gc.unfreeze()
