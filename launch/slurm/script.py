"""What Slurm is given: the runs that one array takes, and the script of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem
from forge.config.sbatch import given
from forge.launch.local.processes import search_path
from forge.planning.allocation import Allocation, allocation, allocation_faults

ALL = 10**6  # points of a sweep at a time, where the cluster alone is to say
START = "start of job {job}, after {count} others"
MARK = f'echo "{START.format(job="$SLURM_JOB_ID", count="${SLURM_RESTART_COUNT:-0}")}"'
"""The line of a script with which the output of a start begins."""
TASKS = "export SLURM_NTASKS=$((SLURM_JOB_NUM_NODES * {0})); export SLURM_NPROCS=$SLURM_NTASKS"
"""The number of ranks of a start on fewer nodes: a job queued again keeps its first number."""
ENDS = (
    "local code=$?; ((code == 0)) || "
    '{ echo "launch.setup failed with exit code $code: $1" >&2; exit 1; }'
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Points in need of equal machines, by index among all points: an array, or a job."""

    needs: Allocation
    members: tuple[int, ...]


def grouped(worlds: Sequence[int], section: Slurm, most: int | None = None) -> list[Group]:
    """Groups of at most `most` points, in the order of the first of each. Raises ConfigError."""
    problems: list[Problem] = [*allocation_faults(section), *incomplete(section.setup)]
    groups: dict[Allocation, list[int]] = {}
    for index, world in enumerate(worlds):
        needs_or_problem = allocation(section, world)
        if isinstance(needs_or_problem, Allocation):
            groups.setdefault(needs_or_problem, []).append(index)
        elif needs_or_problem not in problems:
            problems.append(needs_or_problem)
    if problems:
        raise ConfigError(problems)
    return [
        Group(needs=needs, members=tuple(members[first : first + (most or len(members))]))
        for needs, members in groups.items()
        for first in range(0, len(members), most or len(members))
    ]


def submitit_parameters(
    section: Slurm, needs: Allocation, *, name: str, folder: Path
) -> dict[str, Any]:
    """Parameters of submitit for a script. None: not in the script.

    srun is told to end all ranks when a rank dies, and to hand on the script's variables, withheld
    where the site gives jobs a separate environment (SLURM_EXPORT_ENV=NONE); and the cores of a
    task, not taken from sbatch since 22.05.
    """
    cpus, gpus = section.cpus_per_task, needs.gpus_per_node or None
    requeue = "requeue" if section.max_requeues or section.max_restarts else "no_requeue"
    tasks = TASKS.format(needs.tasks_per_node)
    mark, end = ([MARK, tasks], [script_end(folder)]) if section.max_restarts else ([], None)
    srun = ["--kill-on-bad-exit=1", "--export=ALL", *([f"--cpus-per-task={cpus}"] if cpus else [])]
    return {
        "job_name": " ".join(name.split()),  # a line break would begin a line of the script
        "partition": section.partition,
        "account": section.account,
        "qos": section.qos,
        "constraint": section.constraint,
        "time": section.time,
        "nodes": needs.nodes,
        "ntasks_per_node": needs.tasks_per_node,
        "gpus_per_node": f"{section.gpu_type}:{gpus}" if section.gpu_type and gpus else gpus,
        "cpus_per_task": cpus,
        "mem": section.mem,
        "exclusive": section.exclusive or None,
        "signal_delay_s": section.signal_before,
        "setup": [f"export PYTHONPATH={shlex.quote(search_path())}", *mark, *setup(section.setup)],
        "teardown": end,
        "srun_args": [*srun, *section.srun_args],
        "stderr_to_stdout": True,
        "array_parallelism": section.array_parallelism or ALL,
        "wckey": None,
        "additional_parameters": {requeue: True, **given(section)},
    }


def script_end(folder: Path) -> str:
    """The line after srun, which queues a job again of which a rank has died."""
    words = [sys.executable, "-m", "forge.launch.slurm.restart", str(folder)]
    return f'code=$?; ((code == 0)) || exec {shlex.join(words)} "$code"'


def setup(entries: Sequence[str]) -> list[str]:
    """The lines of launch.setup, each followed by a line ending the job on failure; `set -e` would
    end the job within functions of the site too.
    """
    checked = [line for entry in entries for line in (entry, f"done_or_end {shlex.quote(entry)}")]
    return [f"done_or_end() {{ {ENDS}; }}", *checked] if checked else []


def incomplete(entries: Sequence[str]) -> Iterator[Problem]:
    """Problems of incomplete commands in launch.setup, each about to swallow the next line."""
    if (bash := shutil.which("bash")) is None:
        return
    for entry in entries:
        tried = subprocess.run([bash, "-n", "-c", entry], capture_output=True, text=True, env={})
        error = tried.stderr.strip() or ("it ends with \\" if entry.endswith("\\") else "")
        if error:
            why = error.splitlines()[0].partition(": line ")[2].partition(": ")[2] or error
            message = f"bash does not take it for a complete command: {why}."
            hint = "complete commands; one of several lines, like if ... fi, is one entry"
            yield Problem(f"launch.setup={entry}", message, hint)


def sbatch_text(section: Slurm, group: Group, *, name: str, folder: Path) -> str:
    from submitit.slurm.slurm import _make_sbatch_string

    count, path = len(group.members), folder.resolve()
    command = shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(path)])
    options = submitit_parameters(section, group.needs, name=name, folder=path)
    return _make_sbatch_string(
        command=command, folder=path, map_count=count if count > 1 else None, **options
    )
