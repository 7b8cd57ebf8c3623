"""Signs of life: each rank touches a file of its own in RUN/alive, so that one which is frozen, or
whose machine has gone, is named long before the others give up waiting for it; and another when it
has finished steps, by which a run that hangs is told from one that is at work.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from forge.config.numbers import time_span
from forge.config.regular import open_regular, parse_json

log = logging.getLogger(__name__)

ALIVE = "alive"
EVERY, SILENT = 20.0, 60.0
"""Seconds between two signs, and those after which a rank without one is named."""
LIFE, STEPS = "rank_", "step_"  # how the files begin
LEAST, FIRST, TIMES = 120.0, 600.0, 5
"""Seconds without a step that are not worth a word: of any run, of one in its first step, and how
many times the longest that there was between two steps.
"""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """The last sign of life of a rank. time: by the clock of the file system, as of all others."""

    rank: int
    time: float
    host: str = ""
    process: int | None = None

    def silence(self, now: float) -> str:
        """That there was none since, in words."""
        who = f" (process {self.process} on {self.host})" if self.process else ""
        for_long = time_span(now - self.time)
        return f"rank {self.rank}{who} has given no sign of life for {for_long}"


def silent_ranks(run_dir: Path) -> list[str]:
    """The ranks of a run at work that have given no sign of life for a minute, in words."""
    files = (run_dir / ALIVE).glob(f"{LIFE}*")
    signs = sorted(filter(None, map(_read, files)), key=lambda sign: sign.rank)
    newest, now = max((sign.time for sign in signs), default=0.0), time.time()
    # Another machine's clock may be wrong; where no rank is heard of there is no other clock.
    now = now if now - newest > SILENT else newest
    return [sign.silence(now) for sign in signs if now - sign.time > SILENT]


def stalled(run_dir: Path) -> str:
    """Of a run at work whose ranks give signs of life: that it has finished no step for much longer
    than it takes to, in words; else empty.
    """
    folder = run_dir / ALIVE
    signs = [sign for file in folder.glob(f"{LIFE}*") if (sign := _read(file))]
    steps = [made for file in folder.glob(f"{STEPS}*") if (made := _read_step(file))]
    if not signs or not steps or silent_ranks(run_dir):
        return ""
    waited = max(sign.time for sign in signs) - max(when for when, _ in steps)
    longest = max(seconds for _, seconds in steps)
    if waited <= (max(LEAST, TIMES * longest) if longest else FIRST):
        return ""
    before = f"one took at most {time_span(max(longest, 1.0))}" if longest else "of the first ones"
    ranks = "the rank gives" if len(signs) == 1 else f"all {len(signs)} ranks give"
    return f"no step was finished for {time_span(waited)} ({before}), and {ranks} signs of life"


class Steps:
    """Says in RUN/alive that a rank finishes steps, at most once in `every` seconds: the last step,
    and the longest time that has passed between two.
    """

    def __init__(self, run_dir: Path, rank: int, *, every: float = EVERY) -> None:
        self.file, self.every = run_dir / ALIVE / f"{STEPS}{rank}", every
        self.longest, self._last, self._written = 0.0, 0.0, 0.0
        self._number = 0  # of steps that were finished in this start

    def begin(self, step: int) -> None:
        """At the step that the run goes on from."""
        self._last = self._written = time.monotonic()
        self._number = 0
        self._write(step)

    def finished(self, step: int) -> None:
        now = time.monotonic()
        self._number += 1
        if self._number > 1:  # what is compiled and opened in the first comes once
            self.longest = max(self.longest, now - self._last)
        self._last = now
        if now - self._written >= self.every or self._number == 2:
            self._written = now
            self._write(step)

    def end(self) -> None:
        """No step follows."""
        with suppress(OSError):
            self.file.unlink()

    def _write(self, step: int) -> None:
        with suppress(OSError):
            content = {"step": step, "longest": round(self.longest, 3)}
            self.file.write_text(json.dumps(content) + "\n", encoding="utf-8")


@contextmanager
def signs_of_life(
    run_dir: Path, rank: int, ranks: int, *, every: float = EVERY, silent: float = SILENT
) -> Iterator[None]:
    """Give them, from a thread; the main rank names every other that does not, in its log, and the
    one after it the main rank. Without a file where none can be written.
    """
    own, ended = _file(run_dir, rank), threading.Event()
    with suppress(OSError):
        own.parent.mkdir(exist_ok=True)
        if rank == 0:  # those of an earlier start
            for file in (*own.parent.glob(f"{LIFE}*"), *own.parent.glob(f"{STEPS}*")):
                file.unlink()
        who = {"host": platform.node(), "process": os.getpid()}
        own.write_text(json.dumps(who) + "\n", encoding="utf-8")
    watched = range(1, ranks) if rank == 0 else range(rank == 1)
    watch = _Watch(own, [_file(run_dir, other) for other in watched], every, silent)

    def live() -> None:
        while not ended.wait(every):
            watch.look()

    thread = threading.Thread(target=live, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            own.unlink()
            own.parent.rmdir()  # by the last of them


class _Watch:
    """Touches one rank's file, and looks at those of others."""

    def __init__(self, own: Path, others: list[Path], every: float, silent: float) -> None:
        self.own, self.others, self.every, self.silent = own, others, every, silent
        self.began = self.looked = self._touched()
        self.known: dict[Path, Sign] = {}
        self.named: set[Path] = set()

    def look(self) -> None:
        now, before = self._touched(), self.looked
        self.looked = now
        if now - before > self.silent / 2 + self.every:
            return  # it was not at work itself; the others may have been frozen with it
        for file in self.others:
            sign = _read(file)
            if sign is None and file in self.known:
                continue  # it has ended
            if sign is not None:
                self.known[file] = sign
            sign = sign or Sign(rank=_rank(file), time=self.began)
            if now - sign.time <= self.silent:
                if file in self.named:
                    self.named.remove(file)
                    log.warning("rank %d gives signs of life again", sign.rank)
            elif file not in self.named:
                self.named.add(file)
                log.warning("%s; the others wait for it", sign.silence(now))

    def _touched(self) -> float:
        with suppress(OSError):
            os.utime(self.own)
            return self.own.stat().st_mtime
        return time.time()


def _file(run_dir: Path, rank: int) -> Path:
    return run_dir / ALIVE / f"{LIFE}{rank}"


def _rank(file: Path) -> int:
    return int(file.name.removeprefix(LIFE))


def _read(file: Path) -> Sign | None:
    """None where there is no such sign. The file is opened: network disks answer what is asked of a
    name alone from memory.
    """
    try:
        with open_regular(file) as opened:
            touched, content = os.fstat(opened.fileno()).st_mtime, parse_json(opened.read(1000))
        return Sign(
            rank=_rank(file),
            time=touched,
            host=str(content["host"]),
            process=int(content["process"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_step(file: Path) -> tuple[float, float] | None:
    """When a rank said last that it finishes steps, and the longest time between two."""
    try:
        with open_regular(file) as opened:
            touched, content = os.fstat(opened.fileno()).st_mtime, parse_json(opened.read(1000))
        return touched, float(content["longest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
