"""What submitit runs in each task of a job: one rank of a run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from forge.config.launch import Slurm
from forge.launch.local import threads
from forge.launch.slurm import requeue
from forge.plan.launcher_environment import launcher_environment
from forge.rundir import serialize
from forge.rundir.stored import newest

MEETING = {"MASTER_ADDR", "MASTER_PORT"}


class Rank:
    """One rank of the run in a directory. All that is pickled is this class, by its name, the path
    and the trusted prefixes.
    """

    def __init__(self, run_dir: Path, trust: Sequence[str] = ()) -> None:
        self.run_dir, self.trust = str(run_dir), tuple(trust)

    def __call__(self) -> None:
        """Train; a process that fails, or was stopped, ends with the exit code that says so, and
        with it the state of the job.
        """
        requeue.listen()
        os.environ.update({**threads.of_task(os.environ), **placed(dict(os.environ))})
        worker = import_module(
            "forge.worker"
        )  # where training begins; what submits a job stands below it
        code = worker.main([self.run_dir, *self.trust])
        if code:
            launch = serialize.load(newest(Path(self.run_dir)), trust=self.trust).launch
            requeue.after(code, launch.max_requeues if isinstance(launch, Slurm) else 0)
            worker.leave(code)
        requeue.leave_finished()


def placed(environ: dict[str, str]) -> dict[str, str]:
    """The variables of torch.distributed for this task of a step.

    Where the ranks meet launch.setup may say, on a network of its own: what the shell had set that
    submitted the job has not come along.
    """
    found = launcher_environment(
        {
            name: value
            for name, value in environ.items()
            if name.startswith("SLURM_") or name in MEETING
        }
    )
    return (
        found.variables()
        if found is not None
        else {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    )
