"""What Slurm is given: the runs that one array takes, and the script of it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem
from forge.config.sbatch import given
from forge.launch.local.processes import search_path
from forge.plan.allocation import Allocation, allocation, faults

T = TypeVar("T")
ALL = 10**6  # points of a sweep at a time, where the cluster alone is to say
CHECK = "done_or_end"
ENDS = 'local code=$?; ((code == 0)) || { echo "launch.setup failed with exit code $code: $1" >&2; exit 1; }'
CONTINUED = re.compile(r"(?<!\\)(\\\\)*\\\s*$")  # an odd number of backslashes at the end


@dataclass(frozen=True, kw_only=True)
class Group:
    """Points, by their place in what was given, that need the same machines: one array, or one job."""

    needs: Allocation
    members: tuple[int, ...]


def grouped(worlds: Sequence[int], section: Slurm, most: int | None = None) -> list[Group]:
    """One group a shape, in the order in which the shapes come first, or several of at most `most`
    members. Raises ConfigError.
    """
    problems: list[Problem] = [*faults(section), *unfinished(section.setup)]
    groups: dict[Allocation, list[int]] = {}
    for place, world in enumerate(worlds):
        found = allocation(section, world)
        if isinstance(found, Allocation):
            groups.setdefault(found, []).append(place)
        elif found not in problems:
            problems.append(found)
    if problems:
        raise ConfigError(problems)
    return [
        Group(needs=needs, members=tuple(members[first : first + (most or len(members))]))
        for needs, members in groups.items()
        for first in range(0, len(members), most or len(members))
    ]


def parameters(section: Slurm, needs: Allocation, *, name: str) -> dict[str, Any]:
    """What submitit makes a script of. None: not in the script.

    A rank that dies ends the others: srun is told so; and to hand on what the script has set, which
    it does not where the site, or launch.sbatch.export, gives jobs an environment of their own
    (SLURM_EXPORT_ENV=NONE).
    """
    per_task = (
        [f"--cpus-per-task={section.cpus_per_task}"] if section.cpus_per_task else []
    )  # srun does not take sbatch's since 22.05
    return {
        "job_name": " ".join(name.split()),  # a line break would begin a line of the script
        "partition": section.partition,
        "account": section.account,
        "qos": section.qos,
        "constraint": section.constraint,
        "time": section.time,
        "nodes": needs.nodes,
        "ntasks_per_node": needs.tasks_per_node,
        "gpus_per_node": f"{section.gpu_type}:{needs.gpus_per_node}"
        if section.gpu_type and needs.gpus_per_node
        else needs.gpus_per_node or None,
        "cpus_per_task": section.cpus_per_task,
        "mem": section.mem,
        "exclusive": section.exclusive or None,
        "signal_delay_s": section.signal_before,
        "setup": [f"export PYTHONPATH={shlex.quote(search_path())}", *setup(section.setup)],
        "srun_args": ["--kill-on-bad-exit=1", "--export=ALL", *per_task, *section.srun_args],
        "stderr_to_stdout": True,
        "array_parallelism": section.array_parallelism or ALL,
        "wckey": None,
        "additional_parameters": {
            "requeue" if section.max_requeues else "no_requeue": True,
            **given(section),
        },
    }


def setup(entries: Sequence[str]) -> list[str]:
    """The lines of launch.setup, each with one that ends the job where it fails; `set -e` would end
    it within functions of the site too.
    """
    checked = [line for entry in entries for line in (entry, f"{CHECK} {shlex.quote(entry)}")]
    return [f"{CHECK}() {{ {ENDS}; }}", *checked] if checked else []


def unfinished(entries: Sequence[str]) -> Iterator[Problem]:
    """Entries of launch.setup that are no whole commands: what comes behind them would be taken for
    the rest.
    """
    if (bash := shutil.which("bash")) is None:
        return
    for entry in entries:
        tried = subprocess.run(
            [bash, "-n", "-c", entry],
            capture_output=True,
            text=True,
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
        said = [
            line.partition(": line ")[2].partition(": ")[2] or line
            for line in tried.stderr.splitlines()
        ]
        said = said or (["the next line is a part of it"] if CONTINUED.search(entry) else [])
        if said:
            fix = "commands that are whole; one of several lines, like if ... fi, is one entry, with ; or line breaks in it"
            yield Problem(
                key=f"launch.setup={entry}",
                what=f"bash does not take it for a whole command: {said[0]}.",
                fix=fix,
            )


def text(section: Slurm, group: Group, *, name: str, folder: Path) -> str:
    """The script that sbatch is given."""
    from submitit.slurm.slurm import _make_sbatch_string

    count = len(group.members)
    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder.resolve()))}"
    made = parameters(section, group.needs, name=name)
    return _make_sbatch_string(
        command=command, folder=folder.resolve(), map_count=count if count > 1 else None, **made
    )
