"""A callback that slows a run down while a file is there, so that nodes come and go in its midst:
named on a command line as pace_file.Pace.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from forge.training.callback import Callback


class Pace(Callback):
    """Takes `seconds` a step more while `file` exists."""

    def __init__(self, file: str, seconds: float = 0.5) -> None:
        self.file, self.seconds = Path(file), seconds

    def on_step_end(self, loop: Any, output: Any) -> None:
        if self.file.exists():
            time.sleep(self.seconds)
