"""A callback that a job of Slurm cannot end with before it is told to stop: named on a command line
as pace.Pace.
"""

from __future__ import annotations

import os
import time
from typing import Any

from forge.training.callback import Callback


class Pace(Callback):
    """Takes `seconds` a step more until the job has been queued again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = 0.0 if os.environ.get("SLURM_RESTART_COUNT") else seconds

    def on_step_end(self, loop: Any, output: Any) -> None:
        time.sleep(self.seconds)
