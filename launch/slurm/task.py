"""What a task of a Slurm job runs: one rank of a run directory. A job that was told to stop is
queued again, once all its ranks have saved, and continues in the same directory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from types import FrameType

from forge.config.launch import Slurm
from forge.config.problems import REFUSED, ConfigError
from forge.launch.local import threads
from forge.launch.slurm import queue
from forge.planning.launcher_environment import launcher_environment
from forge.planning.world import ranks_of
from forge.rundir import saved_config
from forge.rundir.on_end import run_on_end
from forge.rundir.saved_config import newest

LIMIT, PREEMPTION = signal.SIGUSR2, signal.SIGTERM  # before the time limit, and for another job
UNTIL_ENDED = 300.0  # seconds for Slurm to end the processes of a job queued again


class Rank:
    """A rank of the run in a directory; pickled by its name, the path and the prefixes."""

    def __init__(self, run_dir: Path, trust: Sequence[str] = ()) -> None:
        self.run_dir, self.trust = str(run_dir), tuple(trust)

    def __call__(self) -> None:
        listen()
        os.environ.update({**threads.of_task(os.environ), **rank_environment()})
        worker = import_module("forge.worker")  # by name: launch may not import training
        code = self._fit() or worker.main([self.run_dir, *self.trust])
        if not code:
            # Python drops its handlers on the way out: the signal would kill a finished run.
            signal.signal(LIMIT, signal.SIG_IGN)
        config = saved_config.load_config(newest(Path(self.run_dir)), trust=self.trust)
        restarts = 0
        if code:
            launch = config.launch
            requeue(code, launch.max_requeues if isinstance(launch, Slurm) else 0)
            restarts = launch.max_restarts if isinstance(launch, Slurm) else 0
        if os.environ.get("RANK", "0") == "0" and not restarts:  # else the end of the script does
            run_on_end(Path(self.run_dir), config.run.on_end, code)
        if code:
            worker.leave(code)

    def _fit(self) -> int:
        """Lay an elastic run out over the ranks of this start, on the main rank; 2 when no layout
        fits. Other ranks hear of the run after it.
        """
        run_dir, ranks = Path(self.run_dir), int(os.environ["WORLD_SIZE"])
        if os.environ["RANK"] != "0":
            return 0
        config = saved_config.load_config(newest(run_dir), trust=self.trust)
        if not config.run.elastic or prod(config.parallel.degrees().values()) == ranks:
            return 0
        from forge.launch.local.elastic import fit_run  # composes: of few starts

        try:
            fit_run(run_dir, ranks, self.trust)
        except ConfigError as error:
            print(error, file=sys.stderr, flush=True)
            return REFUSED
        print(f"laid out over {ranks_of(ranks)}, as Slurm has started the job", flush=True)
        return 0


def rank_environment() -> dict[str, str]:
    """The variables of torch.distributed for this task. launch.setup may have set the rendezvous
    address.
    """
    prefixes = ("SLURM_", "MASTER_ADDR", "MASTER_PORT")
    variables = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    environment = launcher_environment(variables)
    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    return environment.variables() if environment is not None else single


class Noted:
    """A signal handler only storing the signal: a starting run has nothing to save."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number


def listen() -> None:
    """Replace submitit's signal handlers, made to save on the main rank alone."""
    signal.signal(LIMIT, Noted())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)


def requeue(code: int, most: int) -> None:
    """Queue the job of this rank again after a run ended by a signal of Slurm, with this exit code,
    and wait for Slurm to end the rank; return for a job not queued again. The main rank acts; other
    ranks wait for Slurm too.
    """
    if code not in (128 + LIMIT, 128 + PREEMPTION):
        return
    if os.environ.get("RANK", "0") == "0" and (why_not := _queue_again(code - 128, most)):
        print(f"not queued again: {why_not}", file=sys.stderr, flush=True)
        return
    time.sleep(UNTIL_ENDED)  # an exit would end the job


def job_of_this_process() -> str:
    """The job; of an array the element by its index: the array shares the job id of an element."""
    array, element = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else os.environ["SLURM_JOB_ID"]


def _queue_again(number: int, most: int) -> str:
    job = job_of_this_process()
    times = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if times >= most:
        return f"launch.max_requeues={most} is used up"
    try:
        fields = queue.job_fields(job)
        state, preempted = fields.get("JobState"), fields.get("PreemptTime", "None") != "None"
        if state != "RUNNING":
            return f"the job is {state}: Slurm ends it, or queues it again itself"
        if number == PREEMPTION and not preempted:
            return f"{signal.Signals(number).name} was sent to the job by someone"
        announcement = f"queueing the job again, for the {times + 1}. time of {most}"
        print(announcement, file=sys.stderr, flush=True)  # there is no time afterwards
        code, _, error = queue.run_command(["scontrol", "requeue", job])
        return f"scontrol requeue {job}: {error}" if code else ""
    except queue.NoAnswer as error:
        return error.problems[0].what
