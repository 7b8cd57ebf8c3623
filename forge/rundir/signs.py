"""Signs of life: each rank touches a file in RUN/alive, and a second file when steps are finished.

By the first file a frozen rank, or a rank on a lost machine, is named long before other ranks give
up waiting. By the second file a hanging run is told from a run at work.
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
from forge.rundir.collectives import (
    Collective,
    collective_rows,
    last_collectives,
    read_collectives,
    who_waits,
)
from forge.rundir.stacks import Stacks

log = logging.getLogger(__name__)

ALIVE = "alive"
EVERY, SILENT = 20.0, 60.0
"""Seconds between two signs, and the silence in seconds after which a rank is named."""
LIFE, STEPS = "rank_", "step_"  # how the files begin
SIZE = 2048  # bytes of a sign
LEAST, FIRST, TIMES = 120.0, 600.0, 5
"""Limits without a warning: seconds without a step in any run and in a first step, and multiples of
the longest time between two steps.
"""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """The last sign of life of a rank; time: by the file system's clock, common to all ranks."""

    rank: int
    time: float
    host: str = ""
    process: int | None = None
    collectives: tuple[Collective, ...] = ()

    @property
    def place(self) -> str:
        return f" (process {self.process} on {self.host})" if self.process else ""

    def silence(self, now: float) -> str:
        """The silence since the sign, in words."""
        for_long = time_span(now - self.time)
        return f"rank {self.rank}{self.place} has given no sign of life for {for_long}"


def silent_ranks(run_dir: Path) -> list[str]:
    """The ranks of a run at work without a sign of life for a minute, in words."""
    files = (run_dir / ALIVE).glob(f"{LIFE}*")
    signs = sorted(filter(None, map(_read, files)), key=lambda sign: sign.rank)
    newest, now = max((sign.time for sign in signs), default=0.0), time.time()
    # Another machine's clock may be wrong; where no rank is heard of there is no other clock.
    now = now if now - newest > SILENT else newest
    return [sign.silence(now) for sign in signs if now - sign.time > SILENT]


def last_sign(run_dir: Path) -> float:
    """The time of the newest sign of life of any rank; 0 without one."""
    signs = (_read(file) for file in (run_dir / ALIVE).glob(f"{LIFE}*"))
    return max((sign.time for sign in signs if sign), default=0.0)


def waits_in(run_dir: Path) -> str:
    """The collective in which ranks wait for others, by their last signs of life; else empty."""
    signs = [sign for file in (run_dir / ALIVE).glob(f"{LIFE}*") if (sign := _read(file))]
    places = {sign.rank: sign.place for sign in signs}
    return who_waits({sign.rank: sign.collectives for sign in signs}, places)


def stalled(run_dir: Path) -> str:
    """A message for a run with signs of life but no finished step for much too long; else empty."""
    folder = run_dir / ALIVE
    signs = [sign for file in folder.glob(f"{LIFE}*") if (sign := _read(file))]
    steps = [record for file in folder.glob(f"{STEPS}*") if (record := _read_step(file))]
    if not signs or not steps or silent_ranks(run_dir):
        return ""
    waited = max(sign.time for sign in signs) - max(when for when, _ in steps)
    longest = max(seconds for _, seconds in steps)
    if waited <= (max(LEAST, TIMES * longest) if longest else FIRST):
        return ""
    usual = f"one took at most {time_span(max(longest, 1.0))}" if longest else "of the first ones"
    ranks = "the rank gives" if len(signs) == 1 else f"all {len(signs)} ranks give"
    return f"no step was finished for {time_span(waited)} ({usual}), and {ranks} signs of life"


@contextmanager
def signs_of_life(
    run_dir: Path, rank: int, ranks: int, *, every: float = EVERY, silent: float = SILENT
) -> Iterator[Stacks]:
    """Give signs of life from a thread, and watch other ranks.

    The main rank names every other rank without signs in its log, with the collective that others
    wait in, and rank 1 the main rank; all ranks then write their stacks. The main rank also says
    when no step is finished for too long. Without a file where no file can be written.
    """
    own_file, ended = _file(run_dir, rank), threading.Event()
    with suppress(OSError):
        own_file.parent.mkdir(exist_ok=True)
        if rank == 0:  # files of an earlier start
            for file in own_file.parent.iterdir():
                file.unlink()
    watched = range(1, ranks) if rank == 0 else range(rank == 1)
    stacks = Stacks(run_dir, rank, frozen=silent)
    watch = _Watch(own_file, [_file(run_dir, other) for other in watched], every, silent, stacks)
    watch.names_stalls = rank == 0

    def live() -> None:
        while not ended.wait(every):
            watch.look()

    thread = threading.Thread(target=live, name="signs of life", daemon=True)
    thread.start()
    try:
        yield stacks
    finally:
        ended.set()
        thread.join()
        stacks.close()
        with suppress(OSError):
            own_file.unlink()
            own_file.parent.rmdir()  # succeeds for the last rank


class _Watch:
    """Touches a rank's file, and looks at the files of others."""

    def __init__(
        self, own: Path, others: list[Path], every: float, silent: float, stacks: Stacks
    ) -> None:
        self.own, self.others, self.every, self.silent = own, others, every, silent
        self.run_dir, self.stacks = own.parent.parent, stacks
        self.names_stalls, self.has_stalled = False, False
        self.began = self.looked = self._touched()
        self.known: dict[Path, Sign] = {}
        self.named: set[Path] = set()

    def look(self) -> None:
        now, last_look = self._touched(), self.looked
        self.looked = now
        self.stacks.look()
        if now - last_look > self.silent / 2 + self.every:
            return  # this rank was frozen itself, and others perhaps too
        for file in self.others:
            sign = _read(file)
            if sign is None and file in self.known:
                continue  # the rank has ended
            if sign is not None:
                self.known[file] = sign
            sign = sign or Sign(rank=_rank(file), time=self.began)
            if now - sign.time <= self.silent:
                if file in self.named:
                    self.named.remove(file)
                    log.warning("rank %d gives signs of life again", sign.rank)
            elif file not in self.named:
                self.named.add(file)
                waiting = waits_in(self.run_dir) or "the others wait for it"
                log.warning("%s; %s%s", sign.silence(now), waiting, self._ask())
        if self.names_stalls:
            self._name_stall()

    def _name_stall(self) -> None:
        stall = stalled(self.run_dir)
        if stall and not self.has_stalled:
            waiting = waits_in(self.run_dir)
            log.warning("%s%s%s", stall, f": {waiting}" if waiting else "", self._ask())
        self.has_stalled = bool(stall)

    def _ask(self) -> str:
        """Ask all ranks for their stacks; returns words with their place."""
        self.stacks.ask()
        return f"; stacks of all ranks: {self.stacks.file.parent}"

    def _touched(self) -> float:
        """Write the sign of life; returns the time by the file system's clock."""
        who = {"host": platform.node(), "process": os.getpid()}
        text = json.dumps({**who, "collectives": collective_rows(last_collectives())})
        with suppress(OSError):
            # In place and of one length: a reader sees all of it.
            descriptor = os.open(self.own, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                os.pwrite(descriptor, f"{text[: SIZE - 1]:<{SIZE - 1}}\n".encode(), 0)
                return os.fstat(descriptor).st_mtime
            finally:
                os.close(descriptor)
        return time.time()


def _file(run_dir: Path, rank: int) -> Path:
    return run_dir / ALIVE / f"{LIFE}{rank}"


def _rank(file: Path) -> int:
    return int(file.name.removeprefix(LIFE))


def _read(file: Path) -> Sign | None:
    """The sign in a file, or None. The file is opened: network disks answer a stat by name from a
    cache.
    """
    try:
        with open_regular(file) as opened:
            touched, content = os.fstat(opened.fileno()).st_mtime, parse_json(opened.read(SIZE))
        return Sign(
            rank=_rank(file),
            time=touched,
            host=str(content["host"]),
            process=int(content["process"]),
            collectives=tuple(read_collectives(content.get("collectives", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_step(file: Path) -> tuple[float, float] | None:
    """The time of a rank's last step record, and the longest time between two steps."""
    try:
        with open_regular(file) as opened:
            touched, content = os.fstat(opened.fileno()).st_mtime, parse_json(opened.read(1000))
        return touched, float(content["longest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
