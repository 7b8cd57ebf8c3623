"""A callback that makes one rank fail: named on a command line as trouble.Trouble."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from forge.training.callback import Callback


class Trouble(Callback):
    """At the end of a step, on one rank: raise, hang, stop (as SIGSTOP does), or a signal by its
    name to the process itself.
    """

    def __init__(self, what: str, step: int = 3, rank: int = 1, pause: float = 0.0) -> None:
        self.what, self.step, self.rank, self.pause = what, step, rank, pause

    def on_step_end(self, loop: Any, output: Any) -> None:
        time.sleep(self.pause)
        if loop.state.step != self.step or int(os.environ["RANK"]) != self.rank:
            return
        if self.what == "raise":
            raise KeyError("trouble of its own")
        if self.what == "hang":
            time.sleep(1000)
        else:
            os.kill(os.getpid(), signal.Signals[self.what])
