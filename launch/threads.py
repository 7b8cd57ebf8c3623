"""CPU threads of the ranks on this machine: a share of the cores each, and no spinning while they wait."""

from __future__ import annotations

import os
from collections.abc import Mapping

from forge.diagnosis.limits import cpu_quota, usable_cores

COUNT = "OMP_NUM_THREADS"
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def settings(processes: int, environ: Mapping[str, str] = os.environ, cores: int | None = None) -> dict[str, str]:
    """Variables for each of so many processes that run at a time. What the user has set stands; run.num_threads goes before all.

    Threads of OpenMP spin where they wait for one another. As soon as anything else wants a core, they take the time of the very
    threads that they wait for: benchmarks/results/threads.md. cores: that may be used; None = as the system says.
    """
    found = {} if any(name in environ for name in WAITING) else {WAITING[0]: "PASSIVE"}
    if processes > 1 and COUNT not in environ:
        found[COUNT] = str(max((cores or usable_cores(cpu_quota())) // processes, 1))
    return found
