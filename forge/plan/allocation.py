"""The machines that the ranks of a run take of a cluster: how many, with how many ranks and GPUs
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forge.config.launch import Slurm
from forge.config.problems import Problem
from forge.config.sbatch import key_faults, value_faults


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """So many machines, each with so many ranks, one a GPU, or none of the GPUs."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int


def allocation(section: Slurm, world: int) -> Allocation | Problem:
    """What `world` ranks take, or why they do not fit what the section asks for."""
    tasks, gpus = section.tasks_per_node, section.gpus_per_node
    if tasks and gpus and tasks != gpus:
        what = f"{tasks} ranks on a machine of {gpus} GPUs; each rank has one GPU."
        return Problem(
            key=f"launch.tasks_per_node={tasks}",
            what=what,
            fix=f"leave it out, or launch.gpus_per_node={tasks}",
        )
    most = tasks or gpus
    if section.nodes is None:
        per_node = min(most or world, world)
        nodes = world // per_node
    else:
        nodes = section.nodes
        per_node = most or max(world // nodes, 1)
    if nodes * per_node != world:
        return _misfit(section, world, nodes, per_node)
    return Allocation(
        nodes=nodes, tasks_per_node=per_node, gpus_per_node=0 if gpus == 0 else per_node
    )


def faults(section: Slurm) -> Iterator[Problem]:
    """What is wrong with the section, however many ranks there are."""
    if section.signal_before >= 60 * section.time:
        what = f"a job of launch.time={section.time} minutes has {60 * section.time} s, so the signal would come before it begins."
        fix = f"launch.signal_before={30 * section.time} or launch.time={section.signal_before // 60 + 1}"
        yield Problem(key=f"launch.signal_before={section.signal_before}", what=what, fix=fix)
    yield from value_faults(section)
    yield from key_faults(section)


def _misfit(section: Slurm, world: int, nodes: int, per_node: int) -> Problem:
    unit = "rank" if section.gpus_per_node == 0 else "GPU"
    if section.nodes is None:
        key = "launch.tasks_per_node" if section.tasks_per_node else "launch.gpus_per_node"
        what = f"{world} ranks do not fill machines of {per_node} {unit}s: {world} = {nodes} x {per_node} + {world - nodes * per_node}."
        dividing = max(n for n in range(1, per_node + 1) if world % n == 0)
        fix = f"{key}={dividing}, which takes {world // dividing} machines; or parallel degrees whose product is a multiple of {per_node}"
        return Problem(key=f"{key}={per_node}", what=what, fix=fix)
    what = f"the mesh has {world} ranks, and the job {nodes} machines x {per_node} {unit}{'s' * (per_node > 1)} = {nodes * per_node}."
    fix = f"parallel degrees whose product is {nodes * per_node}"
    if world % per_node == 0:
        fix = f"launch.nodes={world // per_node}, or leave it out; or {fix}"
    return Problem(key=f"launch.nodes={nodes}", what=what, fix=fix)
