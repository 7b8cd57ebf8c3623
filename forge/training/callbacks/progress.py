"""Signs of finished steps, for observers outside of the run."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forge.rundir.signs import ALIVE, EVERY, STEPS
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class Steps:
    """Records in RUN/alive that a rank finishes steps, at most once in `every` seconds.

    A record has the last step, and the longest time between two steps.
    """

    def __init__(self, run_dir: Path, rank: int, *, every: float = EVERY) -> None:
        self.file, self.every = run_dir / ALIVE / f"{STEPS}{rank}", every
        self.longest, self._last, self._written = 0.0, 0.0, 0.0
        self._number = 0  # of steps finished in this start

    def begin(self, step: int) -> None:
        """Record the step from which the run continues."""
        self._last = self._written = time.monotonic()
        self._number = 0
        self._write(step)

    def finished(self, step: int) -> None:
        now = time.monotonic()
        self._number += 1
        if self._number > 1:  # the first step also compiles and opens files
            self.longest = max(self.longest, now - self._last)
        self._last = now
        if now - self._written >= self.every or self._number == 2:
            self._written = now
            self._write(step)

    def end(self) -> None:
        """Remove the record: no step follows."""
        with suppress(OSError):
            self.file.unlink()

    def _write(self, step: int) -> None:
        with suppress(OSError):
            content = {"step": step, "longest": round(self.longest, 3)}
            self.file.write_text(json.dumps(content) + "\n", encoding="utf-8")


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
