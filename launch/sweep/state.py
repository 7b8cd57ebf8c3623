"""The state of a point of a sweep: by its run directory, the ledger, what is running here, and, for
all points at once, what Slurm says of their jobs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forge.launch.local.processes import STOPPING
from forge.launch.manifests import queue as manifests
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm import queue
from forge.launch.sweep.directory import Point
from forge.rundir import outcome
from forge.rundir.lock import LOCK, held_by, in_use
from forge.rundir.outcome import ERROR
from forge.rundir.saved_config import is_run

WAITING, RUNNING, DONE = "waiting", "running", "done"
PARTIAL, FAILED, CANCELLED = "partial", "failed", "cancelled"
QUEUED = "queued"  # of a job not yet begun; only `survey` asks Slurm
STOPPED = {128 + number for number in STOPPING}  # exit codes of a run stopped by a signal
GOES_ON = {"COMPLETED", "TIMEOUT", "PREEMPTED", "REVOKED", "DEADLINE"}
"""States of a job whose run has not failed, even if it is not done."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """By a point's number its state, its job's state in Slurm, and the reason of a waiting job.
    silent: the cause of a missing answer of Slurm.
    """

    states: dict[int, str]
    jobs: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    silent: str = ""


def process_of(point: Point) -> tuple[int, str] | None:
    """Process and host at work on a point: the holder of its run directory, or a rank started here
    and yet to take the directory. None for a point at rest.
    """
    if in_use(point.path):
        who = held_by(point.path / LOCK)
        return (who["pid"], who["host"]) if {"pid", "host"} <= set(who) else None
    host = platform.node()
    if point.event not in ("started", "cancelled") or point.host != host or not point.pid:
        return None
    return (point.pid, host) if _runs(point.pid, point.path) else None


def at_work(point: Point) -> bool:
    return in_use(point.path) or process_of(point) is not None


def _runs(pid: int, path: Path) -> bool:
    """Whether a process of this pid runs, and, where visible, with this directory."""
    try:
        if Path("/proc/self/cmdline").is_file():
            return os.fsencode(path) in Path(f"/proc/{pid}/cmdline").read_bytes()
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def point_state(point: Point) -> str:
    """waiting, running, done, partial (begun, stopped, able to continue), failed or cancelled."""
    has_directory = is_run(point.path)
    if at_work(point):
        return RUNNING
    if has_directory and outcome.finished(point.path) is not None:
        return DONE
    if point.event == "cancelled":
        return CANCELLED
    ended_badly = point.event == "ended" and point.code and point.code not in STOPPED
    if ended_badly or (point.path / ERROR).is_file():
        return FAILED
    return PARTIAL if has_directory and outcome.has_begun(point.path) else WAITING


def survey(points: Sequence[Point], *, reasons: bool = False) -> Survey:
    """The states of points and of their jobs, with a single question to Slurm. reasons: ask for the
    reasons of waiting jobs too.
    """
    states = {point.number: point_state(point) for point in points}
    unfinished = [point for point in points if states[point.number] != DONE]
    asked = {job: point.number for point in unfinished if (job := last_job(point)) is not None}
    try:
        job_states = queue.job_states(asked)
    except queue.NoAnswer as error:
        return Survey(states=states, silent=error.problems[0].what)
    jobs = {asked[job]: state for job, state in job_states.items()}
    of_manifests = manifests.states_of(point.path for point in unfinished)
    jobs |= {p.number: of_manifests[p.path] for p in unfinished if p.path in of_manifests}
    for number, of_job in jobs.items():
        states[number] = _with_job(states[number], of_job)
    pending = [job for job, state in job_states.items() if state == "PENDING"] if reasons else []
    why = {asked[job]: reason for job, reason in queue.reasons(pending).items()}
    return Survey(states=states, jobs=jobs, reasons=why)


def last_job(point: Point) -> str | None:
    """The last job of a point in Slurm, also a job kept out of the ledger by a kill."""
    if point.cluster not in (None, "slurm") or point.event in ("started", "ended"):
        return None  # its last start was on this machine
    return slurm.slurm_job(point.path) or point.job


def _with_job(state: str, of_job: str) -> str:
    """A state by the run directory, corrected by the state of its job."""
    if not queue.has_ended(of_job):
        return RUNNING if of_job in ("RUNNING", "COMPLETING") or state == RUNNING else QUEUED
    if state not in (WAITING, PARTIAL) or of_job in GOES_ON:
        return state
    return CANCELLED if of_job == "CANCELLED" else FAILED
