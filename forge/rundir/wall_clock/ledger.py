"""The ledger of a run: every second of a start has a name, on the disk once a second.

The main rank keeps ledger.json, the record of the present start, in place; the number of the last
step, at its head, follows every step. ledger.jsonl has the records of earlier starts, and rows for
submissions, saves and exits of processes.
`forge.rundir.wall_clock.goodput` adds them up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forge.rundir.files import append_row
from forge.rundir.signs import last_sign
from forge.rundir.wall_clock.record import RECORD, UNBEGUN, cause_of_command, read_record
from forge.rundir.wall_clock.starts import COMMAND, ROWS, append_event, launched

SIZE = 1024  # bytes of the record: one length, so that it can be written in place
HEAD, DIGITS = '{"step": ', 20  # the number of the last step stands at one place
EVERY = 1.0  # seconds between records at least, where steps are shorter; numbers of steps between


class Span:
    """A context with a name of its own in a ledger. A class: entered several times a step, it
    costs half of a generator's context.
    """

    __slots__ = ("ledger", "name", "outer")

    def __init__(self, ledger: Ledger, name: str) -> None:
        self.ledger, self.name, self.outer = ledger, name, ledger.name

    def __enter__(self) -> None:
        self.outer = self.ledger.name
        self.ledger.enter(self.name)

    def __exit__(self, *error: object) -> None:
        self.ledger.enter(self.outer)


class Ledger:
    """Names the seconds of one start of a run: a moment has exactly one name.

    seconds: by name. Without a run directory nothing is written, as on all ranks but the main rank.
    """

    def __init__(self, run_dir: Path | None = None, began: float = 0.0, cause: str = "") -> None:
        """began: when the process was launched, in seconds since 1970; until now is `start`."""
        now = time.time()
        self.seconds: dict[str, float] = {"start": max(now - began, 0.0) if began else 0.0}
        self.name, self.steps = "start", (UNBEGUN, UNBEGUN)
        self.run_dir = run_dir
        self._start = json.dumps({"began": began or now, "cause": cause})[1:-1]
        self._since, self._compiled = time.perf_counter(), _compile_seconds()
        self._file, self._due = -1, 0.0

    @classmethod
    def open(cls, run_dir: Path) -> Ledger:
        """The ledger of this start; the record of the start before becomes a row."""
        began, cause = launched()
        if cause == COMMAND:
            cause = cause_of_command(run_dir)
        ledger = cls(run_dir, began, cause)
        with suppress(OSError):
            if (record := read_record(run_dir)) is not None:
                record["time"] = max(record["time"], last_sign(run_dir))
                append_row(run_dir / ROWS, {"event": "start", **record})
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            ledger._file = os.open(run_dir / RECORD, flags, 0o644)
        ledger.write()
        return ledger

    def enter(self, name: str) -> None:
        """Give a name to the time from now on."""
        now, compiled = time.perf_counter(), _compile_seconds()
        passed, seconds = now - self._since, self.seconds
        if compiled != self._compiled:
            compiling = min(max(compiled - self._compiled, 0.0), passed)  # dynamo counts threads
            passed -= compiling
            seconds["compile"] = seconds.get("compile", 0.0) + compiling
        seconds[self.name] = seconds.get(self.name, 0.0) + passed
        self.name, self._since, self._compiled = name, now, compiled

    def span(self, name: str) -> Span:
        """Give a name to the time inside of a context, and go back to the name before."""
        return Span(self, name)

    @contextmanager
    def long_span(self, name: str) -> Iterator[None]:
        """A span that is on the disk as it begins, in case the process is killed inside."""
        with self.span(name):
            self.write()
            yield
        self._due = 0.0  # the record has this name until the next one

    def rename(self, source: str, target: str, seconds: float) -> None:
        """Move seconds already counted to another name."""
        moved = min(seconds, self.seconds.get(source, 0.0))
        if moved > 0:
            self.seconds[source] -= moved
            self.seconds[target] = self.seconds.get(target, 0.0) + moved

    def begin(self, step: int) -> None:
        """The start is over: steps follow, from this one."""
        self.steps = (step, step)
        self.enter("step")
        self.write()

    def step(self, number: int) -> None:
        """A step is finished: its number is on the disk, the seconds by `EVERY`."""
        self.steps = (self.steps[0], number)
        if time.perf_counter() >= self._due:
            self.enter(self.name)
            self.write()
        elif self._file >= 0:
            with suppress(OSError):
                os.pwrite(self._file, b"%*d" % (DIGITS, number), len(HEAD))

    def saved(self, step: int) -> None:
        """A checkpoint of a step exists: later steps are lost if the run dies."""
        if self._file >= 0:
            self.enter(self.name)
            with suppress(OSError):
                append_event(self.run_dir, event="save", step=step, seconds=self._rounded())

    def record(self) -> dict[str, Any]:
        """The present start up to now, as in ledger.json."""
        return json.loads(self._text())

    def write(self) -> None:
        """Put the record on the disk; a start-up without a writable disk goes without."""
        self._due = time.perf_counter() + EVERY
        if self._file >= 0:
            with suppress(OSError):
                os.pwrite(self._file, f"{self._text():<{SIZE - 1}}\n".encode(), 0)

    def close(self) -> None:
        self.enter(self.name)
        self.write()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _text(self) -> str:
        """The record as JSON, with the step first."""
        moment = time.time() - (time.perf_counter() - self._since)
        fields = {"time": moment, "name": self.name, "first": self.steps[0]}
        fields |= {"seconds": self._rounded()}
        return f"{HEAD}{self.steps[1]:{DIGITS}}, {self._start}, {json.dumps(fields)[1:]}"

    def _rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in self.seconds.items()}


def _compile_seconds() -> float:
    """Seconds that torch.compile has taken in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0.0
    spent: Mapping[str, int] = getattr(dynamo, "cumulative_time_spent_ns", {})
    return (spent.get("entire_frame_compile", 0) + spent.get("entire_backward_compile", 0)) / 1e9
