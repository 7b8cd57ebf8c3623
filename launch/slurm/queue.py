"""Jobs that Slurm has been given: their states, until they end, and how they are cancelled."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from forge.config.problems import ConfigError, Problem

SECONDS = 60.0  # that a command of Slurm may take
POLL = 5.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "REVOKED"}
ENDED |= {"OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"}
NO_REASON = {"", "None", "(null)", "N/A"}
UNKNOWN_JOB = "Invalid job id specified"


class NoAnswer(ConfigError):
    """Slurm cannot be asked, or fails; of its jobs nothing is known."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Problem("Slurm", what, "try again once sinfo shows the nodes of the cluster")
        )

    def __str__(self) -> str:
        return self.problems[0].render()


def states(jobs: Iterable[str]) -> dict[str, str]:
    """The state of each job or element of an array, as Slurm calls it: PENDING, RUNNING, ...
    Without accounting it soon forgets what has ended: that is left out. Raises NoAnswer.
    """
    wanted = set(jobs)
    if not wanted:
        return {}
    code, out, error = _squeue(wanted, "--states=all", "%i|%T")
    if code and UNKNOWN_JOB not in error:
        raise NoAnswer(f"squeue fails: {error}.")
    found = _pairs(out, wanted)
    if len(found) < len(wanted):
        options = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
        code, out, _ = ask(["sacct", *options, _ids(wanted)])
        found = {**(_pairs(out, wanted) if code == 0 else {}), **found}
    return {job: state.split()[0] for job, state in found.items()}  # 'CANCELLED by 1000'


def reasons(jobs: Iterable[str]) -> dict[str, str]:
    """Why jobs wait, in Slurm's words: Resources, ... Nothing where it does not answer."""
    wanted = set(jobs)
    try:
        out = _squeue(wanted, "--states=PENDING", "%i|%r")[1] if wanted else ""
    except NoAnswer:
        return {}
    return {job: why for job, why in _pairs(out, wanted).items() if why not in NO_REASON}


def largest_array() -> int | None:
    """How many elements an array may have on this cluster (MaxArraySize), where that is known."""
    try:
        _, out, _ = ask(["scontrol", "show", "config"])
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
    ended: Callable[[str, str | None], None] = lambda job, state: None,
    poll: float = POLL,
) -> dict[str, str | None]:
    """Until all have ended; their last states. ended: called with each. While Slurm gives no
    answer it asks on.
    """
    last: dict[str, str | None] = {}
    while left := [job for job in jobs if job not in last]:
        try:
            now = states(left)
        except NoAnswer:
            now = dict.fromkeys(left, "")
        for job in left:
            if has_ended(now.get(job)):
                last[job] = now.get(job)
                ended(job, last[job])
        if len(last) < len(jobs):
            time.sleep(poll)
    return {job: last[job] for job in jobs}


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, or take them from the queue. Raises NoAnswer."""
    code, _, error = ask(["scancel", *jobs]) if jobs else (0, "", "")
    if code and UNKNOWN_JOB not in error:
        raise NoAnswer(f"scancel fails: {error}.")


def ask(command: list[str], script: str | None = None) -> tuple[int, str, str]:
    """Exit code, output, and the errors in one line. script: what it reads. Raises NoAnswer."""
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=SECONDS
        )
    except FileNotFoundError:
        raise NoAnswer(f"there is no {command[0]} on PATH.") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} gives no answer in {SECONDS:g} s.") from None
    return done.returncode, done.stdout, one_line(done.stderr)


def one_line(errors: str) -> str:
    return " / ".join(
        re.sub(r"^s\w+: (error: )?", "", line) for line in errors.strip().splitlines()
    )


def _squeue(jobs: set[str], which: str, fields: str) -> tuple[int, str, str]:
    return ask(["squeue", "--noheader", "--array", which, _ids(jobs), f"--format={fields}"])


def _ids(jobs: set[str]) -> str:
    return f"--jobs={','.join(sorted({job.partition('_')[0] for job in jobs}, key=int))}"


def _pairs(out: str, wanted: set[str]) -> dict[str, str]:
    pairs = (line.strip().split("|", 1) for line in out.splitlines() if "|" in line)
    return {job: text for job, text in pairs if job in wanted}
