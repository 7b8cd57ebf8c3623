"""When Python looks for garbage."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

YOUNG = 1  # generations 0 and 1: what came since the last look


class Garbage(Callback):
    """Looks for it after every `train.gc_interval` steps, and not in between: Python by itself does
    so on each rank in another step, and all ranks wait for that one.

    What is there when a run starts is left out.
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
