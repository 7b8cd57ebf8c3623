"""Jobs that Slurm has been given: their states, until they end, and how they are cancelled."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from forge.config.problems import ConfigError, Problem

SECONDS = 60.0  # time limit of a command of Slurm
POLL = 5.0
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "REVOKED"}
ENDED |= {"OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"}
NO_REASON = {"", "None", "(null)", "N/A"}
UNKNOWN_JOB = "Invalid job id specified"


class NoAnswer(ConfigError):
    """No answer of Slurm, for want of Slurm or by a failure; its jobs are unknown."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Problem("Slurm", what, "try again once sinfo shows the nodes of the cluster")
        )

    def __str__(self) -> str:
        return self.problems[0].render()


def job_states(jobs: Iterable[str]) -> dict[str, str]:
    """The state of each job or element of an array, in Slurm's words: PENDING, RUNNING, ...
    Without accounting Slurm soon forgets ended jobs, left out here. Raises NoAnswer.
    """
    requested = set(jobs)
    if not requested:
        return {}
    code, out, error = _squeue(requested, "--states=all", "%i|%T")
    if code and UNKNOWN_JOB not in error:
        raise NoAnswer(f"squeue fails: {error}.")
    known_states = _pairs(out, requested)
    if len(known_states) < len(requested):
        options = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
        code, out, _ = run_command(["sacct", *options, _ids(requested)])
        known_states = {**(_pairs(out, requested) if code == 0 else {}), **known_states}
    return {job: state.split()[0] for job, state in known_states.items()}  # 'CANCELLED by 1000'


def reasons(jobs: Iterable[str]) -> dict[str, str]:
    """The reasons of waiting jobs, in Slurm's words: Resources, ... Empty without an answer."""
    requested = set(jobs)
    try:
        out = _squeue(requested, "--states=PENDING", "%i|%r")[1] if requested else ""
    except NoAnswer:
        return {}
    return {job: why for job, why in _pairs(out, requested).items() if why not in NO_REASON}


def job_fields(job: str) -> dict[str, str]:
    """The fields of `scontrol show job`, by Slurm's names. Raises NoAnswer."""
    code, out, error = run_command(["scontrol", "show", "job", "--oneliner", job])
    if code:
        raise NoAnswer(f"scontrol show job {job}: {error}")
    return dict(re.findall(r"(\w+)=(\S+)", out))


def largest_array() -> int | None:
    """The most elements of an array on this cluster (MaxArraySize); None where unknown."""
    try:
        _, out, _ = run_command(["scontrol", "show", "config"])
    except NoAnswer:
        return None
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)$", out, re.MULTILINE)
    return int(match[1]) if match else None


def has_ended(state: str | None) -> bool:
    """Whether a job in this state does nothing more; None: a job unknown to Slurm."""
    return state is None or state in ENDED


def wait_for_jobs(
    jobs: Sequence[str],
    *,
    ended: Callable[[str, str | None], None] = lambda job, state: None,
    poll: float = POLL,
) -> dict[str, str | None]:
    """Wait for the end of all jobs, and return the last states. ended: called with each job and its
    state. Asks on while Slurm gives no answer.
    """
    last: dict[str, str | None] = {}
    while pending := [job for job in jobs if job not in last]:
        try:
            now = job_states(pending)
        except NoAnswer:
            now = dict.fromkeys(pending, "")
        for job in pending:
            if has_ended(now.get(job)):
                last[job] = now.get(job)
                ended(job, last[job])
        if len(last) < len(jobs):
            time.sleep(poll)
    return {job: last[job] for job in jobs}


def cancel_jobs(jobs: Sequence[str]) -> None:
    """End jobs, running or queued. Raises NoAnswer."""
    code, _, error = run_command(["scancel", *jobs]) if jobs else (0, "", "")
    if code and UNKNOWN_JOB not in error:
        raise NoAnswer(f"scancel fails: {error}.")


def run_command(command: list[str], script: str | None = None) -> tuple[int, str, str]:
    """Exit code, output, and errors in a line, of a command. script: its stdin. Raises NoAnswer."""
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
    return run_command(["squeue", "--noheader", "--array", which, _ids(jobs), f"--format={fields}"])


def _ids(jobs: set[str]) -> str:
    return f"--jobs={','.join(sorted({job.partition('_')[0] for job in jobs}, key=int))}"


def _pairs(out: str, wanted: set[str]) -> dict[str, str]:
    pairs = (line.strip().split("|", 1) for line in out.splitlines() if "|" in line)
    return {job: text for job, text in pairs if job in wanted}
