"""Whether all ranks are still there, asked at intervals."""

from __future__ import annotations

from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput


class SignOfLife(Callback):
    """After every `interval`-th update each rank says that it is there: a rank that hangs is named,
    where a collective only times out.

    Stands behind the user's callbacks, in which a rank may hang too. Waits for the device, so an
    interval of hundreds of steps costs nothing that can be measured.
    """

    def __init__(self, interval: int, ranks: Ranks) -> None:
        self.interval, self.ranks = interval, ranks

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.interval == 0:
            self.ranks.check_alive(loop.state.step)
