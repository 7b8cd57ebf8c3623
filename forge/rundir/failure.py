"""Why a rank failed, said once."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.config.problems import REFUSED, ConfigError
from forge.rundir import outcome
from forge.rundir.checkpoints import NoCheckpoint
from forge.rundir.directory import resume_command, short
from forge.rundir.outcome import ERROR, FAILED, exit_code, report_failure


class FailureReport:
    """Reports once, and as early as known, why this rank fails."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.code: int | None = None
        self._loop: Any = None
        self._first_step = 0

    def starts(self, loop: Any) -> None:
        """Note that the run is built, and begins at the loop's step."""
        self._loop, self._first_step = loop, loop.state.step

    def __call__(self, error: BaseException, step: int | None = None) -> int:
        """Report an error and return the exit code; step: the end of the run, when nothing was
        raised.
        """
        if self.code is None and isinstance(error, Exception):
            self.code = self._report(error, step)
        return FAILED if self.code is None else self.code

    def _report(self, error: Exception, step: int | None) -> int:
        goes_on = self._has_begun() and not isinstance(error, NoCheckpoint)
        refused = exit_code(error) == REFUSED and not goes_on and _raised_by_forge(error)
        addition = ""
        if not refused:
            resume_hint = (
                f"; the run continues with: {resume_command(self.run_dir)}" if goes_on else ""
            )
            addition = f"\n(the traceback is in {short(self.run_dir / ERROR)}{resume_hint})"
        code, reported = report_failure(
            self.run_dir, error, step=step, more=addition, refused=refused
        )
        if reported:
            with suppress(OSError):  # the directory may be the cause of the failure
                reason = f"{type(error).__name__}: {error}"
                outcome.record_end(self.run_dir, status="failed", reason=reason, step=step)
        return code

    def _has_begun(self) -> bool:
        """Whether the run can continue: this start has made a step, or an earlier start is on
        record.
        """
        if self._loop is not None and self._loop.state.step > self._first_step:
            return True
        with suppress(ConfigError):  # an unreadable attempts.jsonl may be the cause of the failure
            starts = [row for row in outcome.attempts(self.run_dir) if row.get("event") == "start"]
            return len(starts) > (self._loop is not None)
        return False


def _raised_by_forge(error: BaseException) -> bool:
    """Whether forge itself explains the error; any other error needs its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(Path(__file__).parents[1])
