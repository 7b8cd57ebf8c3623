"""CPU threads of the ranks on this machine: a share of its cores each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from forge.doctor.limits import cpu_quota, usable_cores

COUNT = "OMP_NUM_THREADS"
ON_NODE, TASKS = "SLURM_CPUS_ON_NODE", ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")


def shared(processes: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable for each of so many processes that run at a time; none where the user has set
    it, or there is but one.

    OpenMP would start a thread a core in each. They spin while they wait for one another, and take
    the time of the very threads that they wait for: benchmarks/results/threads.md. run.num_threads
    goes before the variable.
    """
    return {} if processes == 1 or COUNT in environ else _of(usable_cores(cpu_quota()), processes)


def of_task(environ: Mapping[str, str]) -> dict[str, str]:
    """The same for a task of Slurm, which says how many cores of the node the step has, whether or
    not it keeps the task to its own.
    """
    cores = environ.get(ON_NODE, "")
    tasks = next(
        (
            int(found[0])
            for name in TASKS
            if (found := re.match(r"[1-9]\d*", environ.get(name, "")))
        ),
        1,
    )  # "4(x2)": of two nodes
    return {} if COUNT in environ or not cores.isdigit() else _of(int(cores), tasks)


def _of(cores: int, processes: int) -> dict[str, str]:
    return {COUNT: str(max(cores // processes, 1))}
