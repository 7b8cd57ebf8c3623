"""In what state a point of a sweep is, from its run directory, the ledger, and what is running."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forge.launch.sweep.directory import Point
from forge.rundir import attempts, directory
from forge.rundir.directory import ERROR
from forge.rundir.lock import LOCK, held_by, in_use
from forge.rundir.stored import is_run

STATES = WAITING, RUNNING, DONE, PARTIAL, FAILED, CANCELLED = (
    "waiting",
    "running",
    "done",
    "partial",
    "failed",
    "cancelled",
)
QUEUED = "queued"  # of a job that a cluster has not begun; only `survey` asks it
STOPPED = {
    128 + number
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
}


@dataclass(frozen=True, kw_only=True)
class Process:
    """The main rank of a run."""

    pid: int
    host: str


def process_of(point: Point) -> Process | None:
    """What works on a point: who holds its run directory, or was started here for it and has yet to
    take it.
    """
    if in_use(point.path):
        who = held_by(point.path / LOCK)
        return (
            Process(pid=int(who["pid"]), host=str(who["host"]))
            if {"pid", "host"} <= set(who)
            else None
        )
    here = platform.node()
    if (
        point.event in ("started", "cancelled")
        and point.pid
        and point.host == here
        and _runs(point.pid, point.path)
    ):
        return Process(pid=point.pid, host=here)
    return None


def at_work(point: Point) -> bool:
    """Whether a process works on a point."""
    return in_use(point.path) or process_of(point) is not None


def _runs(pid: int, path: Path) -> bool:
    """Whether there is such a process, and it is one of that directory."""
    try:
        if Path("/proc/self/cmdline").is_file():
            return os.fsencode(path) in Path(f"/proc/{pid}/cmdline").read_bytes()
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def state_of(point: Point, running: Callable[[Point], bool] = at_work) -> str:
    """waiting, running, done, partial (begun, stopped, goes on), failed or cancelled. running:
    whether something works on it now.
    """
    made = is_run(point.path)
    if running(point):
        return RUNNING
    if made and directory.finished(point.path) is not None:
        return DONE
    if point.event == "cancelled":
        return CANCELLED
    if (point.path / ERROR).is_file() or (
        point.event == "ended" and point.code and point.code not in STOPPED
    ):
        return FAILED
    return PARTIAL if made and attempts.read(point.path) else WAITING
