"""Keys of sbatch that forge sets itself; the others pass through launch.sbatch, and their faults
are reported by `sbatch --test-only`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forge.config.launch import Slurm
from forge.config.problems import Problem

CPUS, GPUS = "launch.cpus_per_task", "launch.gpus_per_node and launch.gpu_type"
LOG, RANKS = "the log of each rank", "the parallel degrees and launch.tasks_per_node"
SOURCES = {
    "account": "launch.account",
    "array": "a sweep's points, launch.array_parallelism at a time",
    "constraint": "launch.constraint",
    "cpus_per_gpu": CPUS,
    "cpus_per_task": CPUS,
    "error": LOG,
    "gpus": GPUS,
    "gpus_per_node": GPUS,
    "gpus_per_socket": GPUS,
    "gpus_per_task": GPUS,
    "job_name": "run.name, or sweep.name",
    "mem": "launch.mem",
    "no_requeue": "launch.max_requeues",
    "nodes": "launch.nodes",
    "ntasks": RANKS,
    "ntasks_per_gpu": RANKS,
    "ntasks_per_node": RANKS,
    "open_mode": "append, for a job that is queued again",
    "output": LOG,
    "partition": "launch.partition",
    "qos": "launch.qos",
    "requeue": "launch.max_requeues",
    "signal": "launch.signal_before",
    "time": "launch.time, in minutes",
}
"""Options of forge behind the keys it gives sbatch."""
INSTEAD = {
    "clusters": "export SLURM_CLUSTERS, which squeue and scancel read too",
    "parsable": "leave it out: forge reads the job's id by itself",
    "test_only": "launch.dry_run=true, which shows what sbatch --test-only says",
    "wait": "launch.wait=true",
    "wrap": "launch.setup, for lines of shell before the run",
}
"""Advice for keys that would keep forge from submitting the job, or following it."""


def given(section: Slurm) -> dict[str, str | bool]:
    """The keys launch.sbatch adds to a script: names with underscores, True for a flag."""
    return {
        _name(key): value.lower() in ("", "true") or value for key, value in section.sbatch.items()
    }


def key_faults(section: Slurm) -> Iterator[Problem]:
    """Yield the keys of launch.sbatch that forge sets itself, or cannot work with."""
    for key, value in section.sbatch.items():
        name, typed = _name(key), f"launch.sbatch.{key}={value}"
        source = SOURCES.get(name)
        if name in ("gres", "tres_per_task") and re.search(r"\bgpu\b", value):
            source = GPUS
        elif name == "exclusive" and (section.exclusive or value.lower() in ("", "true")):
            source = "launch.exclusive=true"
        if source:
            message = "forge sets this key of sbatch itself."
            yield Problem(typed, message, f"leave it out: it is {source}")
        elif name in INSTEAD:
            yield Problem(typed, "forge cannot work with this key of sbatch.", INSTEAD[name])


def _name(key: str) -> str:
    return key.lstrip("-").replace("-", "_")
