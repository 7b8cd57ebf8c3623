"""A job of Slurm that was told to stop is queued again, once all its ranks have saved; it goes on
in the same run directory.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from types import FrameType

STOPPED = 300.0  # seconds for Slurm to end the processes of a job that is queued again
SECONDS = 60.0  # that scontrol may take
LIMIT, PREEMPTION = (
    signal.SIGUSR2,
    signal.SIGTERM,
)  # what Slurm sends before the time limit, and to make room for another job


class Noted:
    """A handler of signals that only notes them, for who listens later: a run that is still
    starting has nothing to save.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number


def listen() -> None:
    """Take the place of submitit's handlers, which would save on the main rank alone, and hear
    nothing of the end.
    """
    signal.signal(LIMIT, Noted())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)


def leave_finished() -> None:
    """Let no signal end a process that has done its work: Python itself would drop its handler on
    the way out.
    """
    signal.signal(LIMIT, signal.SIG_IGN)


def after(code: int, most: int) -> None:
    """Queue the job of this rank again when a signal of Slurm has ended the run, with this exit
    code, and wait for Slurm to end the rank.

    It returns where there is nothing to go on with: the run has ended, was cancelled, or has been
    queued again `most` times. The main rank acts; others wait for what comes of it.
    """
    if code not in (128 + LIMIT, 128 + PREEMPTION):
        return
    if os.environ.get("RANK", "0") == "0":
        why_not = _again(code - 128, most)
        if why_not:
            print(f"not queued again: {why_not}", file=sys.stderr, flush=True)
            return
    time.sleep(STOPPED)  # an exit would end the job


def _again(number: int, most: int) -> str:
    """Queue the job again; or why not."""
    job = _job()
    times = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if times >= most:
        return f"launch.max_requeues={most} is used up"
    known = _scontrol("show", "job", "--oneliner", job)
    if isinstance(known, str):
        return known
    state, preempted = known.get("JobState"), known.get("PreemptTime", "None") != "None"
    if state != "RUNNING":
        return f"the job is {state}: Slurm ends it, or queues it again itself"
    if number == PREEMPTION and not preempted:
        return f"{signal.Signals(number).name} was sent to the job by someone"
    print(
        f"queueing the job again, for the {times + 1}. time of {most}", file=sys.stderr, flush=True
    )  # there is no time afterwards
    failed = _scontrol("requeue", job)
    return failed if isinstance(failed, str) else ""


def _job() -> str:
    """This job. An element of an array is called by its place: the number of its own that one of
    them has is that of them all.
    """
    array, place = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{place}" if array and place else os.environ["SLURM_JOB_ID"]


def _scontrol(*arguments: str) -> dict[str, str] | str:
    """The fields that it shows, or what it complains of."""
    command = ["scontrol", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}"
    if done.returncode:
        return f"{' '.join(command)}: {done.stderr.strip()}"
    return dict(re.findall(r"(\w+)=(\S+)", done.stdout))
