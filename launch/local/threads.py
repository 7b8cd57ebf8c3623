"""CPU threads of the ranks on this machine: a share of its cores each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from forge.doctor.limits import cpu_quota, usable_cores

COUNT = "OMP_NUM_THREADS"


def shared(processes: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable for each of `processes` processes at a time; none where set by the user, or for
    a single process.

    OpenMP would start a thread a core in each process. Waiting threads spin, and take the time of
    the very threads waited for: benchmarks/results/threads.md. run.num_threads goes before the
    variable.
    """
    return {} if processes == 1 or COUNT in environ else _of(usable_cores(cpu_quota()), processes)


def of_task(environ: Mapping[str, str]) -> dict[str, str]:
    """`shared` for a task of Slurm, from Slurm's number of the step's cores on the node, whether or
    not Slurm binds the task to cores.
    """
    cores = environ.get("SLURM_CPUS_ON_NODE", "")
    names = "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"  # "4(x2)": of two nodes
    tasks = [int(match[0]) for n in names if (match := re.match(r"\d+", environ.get(n, "")))]
    return {} if COUNT in environ or not cores.isdigit() else _of(int(cores), (tasks or [1])[0])


def _of(cores: int, processes: int) -> dict[str, str]:
    return {COUNT: str(max(cores // processes, 1))}
