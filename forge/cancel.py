"""`python -m forge.cancel SWEEP [NUMBER ...]`: end points of a sweep, or a run: here, or in Slurm's
queue. What runs is saved.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forge import cli
from forge.config.problems import ConfigError, Problem
from forge.launch.sweep import messages
from forge.launch.sweep.directory import LOCK, POINTS, Point, SweepDirectory
from forge.launch.sweep.state import (
    CANCELLED,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    Survey,
    job_of,
    process_of,
    survey,
)
from forge.rundir import links
from forge.rundir.lock import held_by, in_use
from forge.status import named, parser, points_of


def main(argv: Sequence[str] | None = None) -> int:
    """Say what was ended; 1 when something could not be reached from here, 2 for what is neither a
    sweep nor a run.
    """
    description = "End points of a sweep, or all of it, or a run. What runs saves first, and goes on with the same command again."
    options = cli.parse(
        parser("forge.cancel", description, "of points; none = all that are not done"), argv
    )
    return cli.refuse(lambda: cancel(*named(options, "forge.cancel")))


def cancel(place: Path, numbers: Sequence[int] = ()) -> int:
    """End them, and note it in the ledger of the sweep. Raises ConfigError."""
    sweep, points = points_of(place, numbers)
    found = survey(points)
    if found.silent:
        raise ConfigError(
            [
                Problem(
                    key=str(place),
                    what=f"Slurm does not answer: {found.silent}",
                    fix="again when it does",
                )
            ]
        )
    open_points = [
        point for point in points if found.states[point.number] not in (DONE, FAILED, CANCELLED)
    ]
    if not open_points:
        print(
            "there is nothing left to cancel: "
            + messages.counted([found.states[point.number] for point in points])
        )
        return 0
    if sweep is not None:
        links.check(sweep.path, apart=(POINTS,))
        for point in open_points:
            sweep.note("cancelled", point.number)
    unreached = _end_starter(sweep) if sweep is not None and not numbers else []
    _end_jobs([point for point in open_points if point.number in found.jobs])
    for point in open_points:
        words, reached = _end(point, found)
        unreached += [] if reached else [words]
        print(
            cli.printable(messages.line(point, "cancelled", words) if sweep is not None else words)
        )
    if sweep is not None:
        print("the same command with sweep.retry=true takes them up again")
    return 1 if unreached else 0


def _end_starter(sweep: SweepDirectory) -> list[str]:
    """Tell the command that starts points to stop; what cannot be reached is told and returned."""
    who = held_by(sweep.path / LOCK)
    if not in_use(sweep.path, LOCK) or not isinstance(who.get("pid"), int):
        return []
    if who.get("host") != platform.node():
        words = f"the command that starts points runs on {who.get('host')}, process {who['pid']}; type this there"
        print(cli.printable(words))
        return [words]
    with suppress(ProcessLookupError):
        os.kill(who["pid"], signal.SIGTERM)
    return []


def _end_jobs(points: Sequence[Point]) -> None:
    if points:
        from forge.launch.slurm import jobs as slurm

        slurm.cancel([job for point in points if (job := job_of(point)) is not None])


def _end(point: Point, found: Survey) -> tuple[str, bool]:
    """End the ranks of a point on this machine; what is said of it, and whether it was reached."""
    state, job = found.states[point.number], found.jobs.get(point.number)
    if state in (RUNNING, QUEUED) and job is not None:
        return f"job {job_of(point)}, which was {job}", True
    if state != RUNNING:
        return f"it was {state}", True
    who = process_of(point)
    if who is None or who.host != platform.node():
        return (
            f"it runs on {who.host}, process {who.pid}; type this there"
            if who
            else "it is not known what runs it",
            False,
        )
    with suppress(ProcessLookupError):
        os.kill(who.pid, signal.SIGTERM)
    return f"process {who.pid} saves and ends", True


if __name__ == "__main__":
    sys.exit(main())
