"""Ranks that are started again when one of them dies: run.max_restarts and run.elastic."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge.config.numbers import counted, time_span
from forge.config.problems import REFUSED, ConfigError
from forge.config.run import Run
from forge.launch.local.elastic import Elastic
from forge.launch.local.processes import Ranks
from forge.rundir import outcome
from forge.rundir.on_end import run_on_end
from forge.rundir.wall_clock import starts
from forge.rundir.wall_clock.record import UNBEGUN, cause_of_command, read_record

PAUSE = 1.0  # seconds until ports and memory of the dead ranks are free
STUCK = 3  # deaths in a row without a step beyond the furthest one
GROW = signal.SIGUSR1


class RestartedRanks:
    """`Ranks` that are started again from the newest checkpoint, at most run.max_restarts times.

    With run.elastic a rank that was killed is left out, until its time to be tried again has come:
    then the run saves, and continues with all ranks. A run that ended by itself, by a signal to the
    launcher or for a mistake of the user's is not started again.
    """

    def __init__(
        self,
        run_dir: Path,
        ranks: int,
        section: Run,
        elastic: Elastic | None = None,
        *,
        gpus: list[str] | None = None,
        say: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        """elastic: for other numbers of ranks. gpus: of the ranks, as CUDA_VISIBLE_DEVICES names
        them. options: as in `Ranks`.
        """
        self.run_dir, self.section = run_dir, section
        self.elastic = elastic if section.elastic else None
        self.all, self.gpus, self.options = ranks, gpus or [], options
        if say is not None:
            options["say"] = say
        self.lost: set[int] = set()  # ranks of all, by the number they have with all ranks
        self.restarts, self.furthest, self.stuck = 0, UNBEGUN, 0
        self.passed_on: set[int] = set()
        self._due: float | None = None
        self._size, self._since, self._growing = ranks, time.time(), False
        self._earlier: int | None = None
        self._ended = False
        self._ranks = self._started(cause_of_command(run_dir))
        self.say = self._ranks.say

    @property
    def pid(self) -> int:
        return self._ranks.pid

    def poll(self) -> int | None:
        """The exit code once all ranks have ended for good, and run.on_end is done."""
        code = self._poll()
        if code is not None and not self._ended:
            self._ended = True
            run_on_end(self.run_dir, self.section.on_end, code)
        return code

    def _poll(self) -> int | None:
        if self._due is not None:
            if self.passed_on:
                return 128 + max(self.passed_on)
            if time.monotonic() >= self._due:
                self._due, self._ranks = None, self._started(starts.RESTART)
            return None
        code = self._ranks.poll()
        if code is None:
            self._try_all_ranks()
            return None
        if self._growing and code == 128 + GROW and not self.passed_on:
            self._growing = False
            self.lost.clear()
            return code if not self._laid_out("continuing") else None
        return None if self._starts_again(code) else code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def pass_on(self, number: int) -> None:
        self.passed_on.add(number)
        self._ranks.pass_on(number)

    def kill(self) -> None:
        self._ranks.kill()

    def _starts_again(self, code: int) -> bool:
        """Prepare another start after an end with this code, unless there is none; says why."""
        if code in (0, REFUSED) or self.passed_on or not self.section.max_restarts:
            return False
        if _result_time(self.run_dir) not in (None, self._earlier):
            return False  # it stopped, or a check of forge's ended it
        step = (read_record(self.run_dir) or {}).get("step", UNBEGUN)
        self.stuck = 0 if step > self.furthest else self.stuck + 1
        self.furthest = max(step, self.furthest)
        if self.stuck >= STUCK:
            where = "its first step" if self.furthest < 0 else f"step {self.furthest}"
            text = f"not started again: {STUCK} starts in a row have not come beyond {where}"
            self.say(f"{text}. Mend the cause of their end, then resume the run")
            return False
        if self.restarts >= self.section.max_restarts:
            self.say(f"not started again: run.max_restarts={self.section.max_restarts} is used up")
            return False
        self.restarts += 1
        if self.elastic is not None:
            present = [rank for rank in range(self.all) if rank not in self.lost]
            self.lost |= {present[rank] for rank in self._ranks.killed}
            if self.all - len(self.lost) < self.elastic.least:
                self.lost.clear()  # too few are left: all are tried again
        number = f"start {self.restarts} of run.max_restarts={self.section.max_restarts}"
        return self._laid_out(f"starting again from the newest checkpoint ({number})")

    def _laid_out(self, text: str) -> bool:
        """Choose the layout of the next start, and say what follows."""
        if self.elastic is not None:
            try:
                self._size = self.elastic.lay_out(self.all - len(self.lost))
            except ConfigError as error:
                self.say(f"not started again: no layout fits the ranks that are left\n{error}")
                return False
            text += f", with {counted(self._size, 'rank')}"
        self.say(text)
        self._due = time.monotonic() + PAUSE
        return True

    def _try_all_ranks(self) -> None:
        """Ask a run on fewer ranks to save and end, once its time is over."""
        minutes = self.section.elastic_retry_minutes
        waited = time.time() - self._since
        if not self.lost or self._growing or self.passed_on or waited < 60 * minutes:
            return
        record = read_record(self.run_dir)
        if record is None or record["began"] < self._since or record["step"] <= record["first"]:
            return  # a start that has not made a step yet takes no signal
        self._growing = True
        missing = counted(len(self.lost), "rank")
        self.say(f"{missing} left out for {time_span(waited)}: saving, to try all ranks again")
        self._ranks.pass_on(GROW)

    def _started(self, cause: str) -> Ranks:
        options = dict(self.options)
        gpus = [gpu for rank, gpu in enumerate(self.gpus) if rank not in self.lost]
        if gpus:
            devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
            options["environ"] = {**(options.get("environ") or {}), **devices}
        self._since, self._earlier = time.time(), _result_time(self.run_dir)
        return Ranks(self.run_dir, self._size, cause=cause, **options)


def _result_time(run_dir: Path) -> int | None:
    """When result.json was written; None without the file."""
    try:
        return (run_dir / outcome.RESULT).stat().st_mtime_ns
    except OSError:
        return None
