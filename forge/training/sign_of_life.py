"""Whether all ranks are still there, asked at intervals."""

from __future__ import annotations

from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop


class SignOfLife(Callback):
    """Before every `interval`-th update each rank says that it is there: a rank that hangs is named, where a collective only times out.

    Waits for the device, so an interval of hundreds of steps costs nothing that can be measured.
    """

    def __init__(self, interval: int, ranks: Ranks) -> None:
        self.interval, self.ranks = interval, ranks

    def on_step_start(self, loop: Loop) -> None:
        if (loop.state.step + 1) % self.interval == 0:
            self.ranks.check_alive(loop.state.step + 1)
