"""Jobs that Slurm has been given: in what state they are, until they end, and how they are
cancelled.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from forge.config.problems import ConfigError, Problem

SECONDS = 60.0  # that a command of Slurm may take
POLL = 5.0
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
NO_REASON = {"", "None", "(null)", "N/A"}
UNKNOWN_JOB = "Invalid job id specified"


class NoAnswer(ConfigError):
    """Slurm cannot be asked, or fails; of its jobs nothing is known."""

    def __init__(self, what: str) -> None:
        super().__init__(
            [
                Problem(
                    key="Slurm",
                    what=what,
                    fix="try again once sinfo shows the nodes of the cluster",
                )
            ]
        )

    def __str__(self) -> str:
        return self.problems[0].render()


def states(jobs: Iterable[str]) -> dict[str, str]:
    """The state of each job or element of an array, as Slurm calls it: PENDING, RUNNING, COMPLETED,
    FAILED, ...

    Left out is what Slurm no longer knows: without accounting, what ended some minutes ago; how it
    ended is for its run directory to say. Raises NoAnswer.
    """
    wanted = set(jobs)
    if not wanted:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in wanted}, key=int))
    code, out, said = _ask(
        ["squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}", "--format=%i|%T"]
    )
    if code and UNKNOWN_JOB not in said:
        raise NoAnswer(f"squeue fails: {said}.")
    found = _parsed(out, wanted)
    if len(found) < len(wanted):
        code, out, _ = _ask(
            [
                "sacct",
                "--noheader",
                "--parsable2",
                "--allocations",
                f"--jobs={ids}",
                "--format=JobID,State",
            ]
        )
        found = {**(_parsed(out, wanted) if code == 0 else {}), **found}
    return found


def reasons(jobs: Iterable[str]) -> dict[str, str]:
    """Why jobs of the queue wait, in Slurm's words: Resources, Priority, DependencyNeverSatisfied,
    ... Nothing where it does not answer.
    """
    wanted = set(jobs)
    if not wanted:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in wanted}, key=int))
    try:
        _, out, _ = _ask(
            [
                "squeue",
                "--noheader",
                "--array",
                "--states=PENDING",
                f"--jobs={ids}",
                "--format=%i|%r",
            ]
        )
    except NoAnswer:
        return {}
    pairs = (line.strip().split("|", 1) for line in out.splitlines() if "|" in line)
    return {job: reason for job, reason in pairs if job in wanted and reason not in NO_REASON}


def largest_array() -> int | None:
    """How many elements an array may have on this cluster (MaxArraySize); None where nobody says."""
    try:
        _, out, _ = _ask(["scontrol", "show", "config"])
    except NoAnswer:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)$", out, re.MULTILINE)
    return int(found[1]) if found else None


def has_ended(state: str | None) -> bool:
    """Whether a job in this state does nothing more; None: Slurm does not know it."""
    return state is None or state in ENDED


def wait(
    jobs: Sequence[str],
    *,
    told: Callable[[str, str | None], None] = lambda job, state: None,
    poll: float = POLL,
) -> dict[str, str | None]:
    """Until all have ended; their last states. told: called with each as it ends. While Slurm gives
    no answer it asks on.
    """
    last: dict[str, str | None] = {}
    while True:
        left = [job for job in jobs if job not in last]
        try:
            now = states(left)
        except NoAnswer:
            now = dict.fromkeys(left, "")
        for job in left:
            if has_ended(now.get(job)):
                last[job] = now.get(job)
                told(job, last[job])
        if len(last) == len(set(jobs)):
            return {job: last[job] for job in jobs}
        time.sleep(poll)


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, or take them from the queue; without effect on those that have ended. Raises
    NoAnswer.
    """
    ids = list(jobs)
    if ids:
        code, _, said = _ask(["scancel", *ids])
        if code and UNKNOWN_JOB not in said:
            raise NoAnswer(f"scancel fails: {said}.")


def _parsed(out: str, wanted: set[str]) -> dict[str, str]:
    pairs = (line.strip().split("|") for line in out.splitlines() if "|" in line)
    return {job: state.split()[0] for job, state in pairs if job in wanted}  # 'CANCELLED by 1000'


def _ask(command: list[str]) -> tuple[int, str, str]:
    """Exit code, output, and the last line of what it complains of."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        raise NoAnswer(f"there is no {command[0]} on PATH.") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} gives no answer in {SECONDS:g} s.") from None
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]
