"""The state of every point of a sweep, with what a cluster says of its jobs, which is asked once
for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forge.launch.sweep.directory import Point
from forge.launch.sweep.state import (
    CANCELLED,
    DONE,
    FAILED,
    PARTIAL,
    QUEUED,
    RUNNING,
    WAITING,
    state_of,
)

STOPPED = {"TIMEOUT", "PREEMPTED", "REVOKED", "DEADLINE"}
OPEN = (WAITING, PARTIAL)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The state of each point by number, what Slurm calls that of its job, why the job waits, and
    why Slurm could not be asked.
    """

    states: dict[int, str]
    jobs: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    silent: str = ""


def survey(points: Sequence[Point], *, reasons: bool = False) -> Survey:
    """Look at run directories, and ask Slurm for the jobs of those that are not done. reasons: and
    why they wait.
    """
    states = {point.number: state_of(point) for point in points}
    asked = {
        job: point.number
        for point in points
        if states[point.number] != DONE and (job := job_of(point)) is not None
    }
    if not asked:
        return Survey(states=states)
    from forge.launch.slurm import jobs as slurm

    try:
        found = slurm.states(asked)
    except slurm.NoAnswer as error:
        return Survey(states=states, silent=error.problems[0].what)
    jobs = {asked[job]: state for job, state in found.items()}
    for number, said in jobs.items():
        states[number] = _with_job(states[number], said, ended=slurm.has_ended(said))
    waiting = (
        slurm.reasons([job for job, state in found.items() if state == "PENDING"])
        if reasons
        else {}
    )
    return Survey(
        states=states, jobs=jobs, reasons={asked[job]: why for job, why in waiting.items()}
    )


def job_of(point: Point) -> str | None:
    """The job of a point in Slurm's queue, or that was; also one whose submitter was killed before
    it could note it.
    """
    from forge.launch.slurm import jobs as slurm

    if point.cluster not in (None, "slurm") or point.event in ("started", "ended"):
        return None  # the last start of it was here
    return slurm.job_of(point.path) or point.job


def _with_job(state: str, said: str, *, ended: bool) -> str:
    """A state as its directory shows it, and what Slurm says of its job."""
    if not ended:
        return RUNNING if said in ("RUNNING", "COMPLETING") or state == RUNNING else QUEUED
    if state not in OPEN or said in STOPPED or said == "COMPLETED":
        return state
    return CANCELLED if said == "CANCELLED" else FAILED
