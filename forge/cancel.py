"""`python -m forge.cancel SWEEP [NUMBER ...]`: end points of a sweep, or a run: here, or in Slurm's
queue. What runs is saved.

Examples:
    python -m forge.cancel sweeps/tiny
    python -m forge.cancel sweeps/tiny 3 4
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
from forge.config.problems import refusal
from forge.launch.manifests import queue as manifests
from forge.launch.slurm import queue
from forge.launch.sweep import messages
from forge.launch.sweep.directory import LOCK, POINTS, Point, SweepDirectory
from forge.launch.sweep.state import (
    CANCELLED,
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    Survey,
    last_job,
    process_of,
    survey,
)
from forge.rundir import untrusted
from forge.rundir.lock import held_by, in_use
from forge.status import named_points, points_of, points_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Cancel points and print each ended point; 1 for a point out of reach from this machine, 2 for
    neither a sweep nor a run.
    """
    about = "End points of a sweep, or all of it, or a run. What runs saves first, and continues "
    about += "with the same command again."
    arguments = points_parser("forge.cancel", about, "of points; none = all that are not done")
    options = cli.parse(arguments, argv)
    return cli.refuse(lambda: cancel(*named_points(options, "forge.cancel")))


def cancel(place: Path, numbers: Sequence[int] = ()) -> int:
    """End points, and note the cancellation in the sweep's ledger. Raises ConfigError."""
    sweep, points = points_of(place, numbers)
    findings = survey(points)
    if findings.silent:
        raise refusal(str(place), f"Slurm does not answer: {findings.silent}", "again when it does")
    ended = (DONE, FAILED, CANCELLED)
    active = [point for point in points if findings.states[point.number] not in ended]
    if not active:
        states = messages.count_states([findings.states[point.number] for point in points])
        print(f"there is nothing left to cancel: {states}")
        return 0
    reached = True
    if sweep is not None:
        untrusted.check_links(sweep.path, apart=(POINTS,))
        for point in active:
            sweep.note("cancelled", point.number)
        reached = bool(numbers) or _end_command(sweep)
    queued = [point for point in active if point.number in findings.jobs]
    queue.cancel_jobs([job for point in queued if (job := last_job(point)) is not None])
    for point in active:
        manifests.cancel_job(point.path)
        message, ends = _end(point, findings)
        reached = reached and ends
        print(cli.printable(messages.line(point, "cancelled", message) if sweep else message))
    if sweep is not None:
        print("the same command with sweep.retry=true takes them up again")
    return 0 if reached else 1


def _end_command(sweep: SweepDirectory) -> bool:
    who = held_by(sweep.path / LOCK)
    if not in_use(sweep.path, LOCK) or not isinstance(who.get("pid"), int):
        return True
    if who.get("host") != platform.node():
        where = f"{who.get('host')}, process {who['pid']}; type this there"
        print(cli.printable(f"the command that starts points runs on {where}"))
        return False
    with suppress(ProcessLookupError):
        os.kill(who["pid"], signal.SIGTERM)
    return True


def _end(point: Point, found: Survey) -> tuple[str, bool]:
    state, job = found.states[point.number], found.jobs.get(point.number)
    if state in (RUNNING, QUEUED) and job is not None:
        return f"job {last_job(point) or manifests.name_of_job(point.path)}, which was {job}", True
    if state != RUNNING:
        return f"it was {state}", True
    pid, host = process_of(point) or (0, "")
    if host != platform.node():
        where = f"it runs on {host}, process {pid}; type this there" if pid else ""
        return where or "it is not known what runs it", False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return f"process {pid} saves and ends", True


if __name__ == "__main__":
    sys.exit(main())
