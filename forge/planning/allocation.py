"""The nodes of a cluster for a run, with ranks and GPUs of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forge.config.launch import Manifest, Slurm
from forge.config.problems import Problem
from forge.config.sbatch import key_faults


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Number of nodes, and of ranks and GPUs on each: one GPU a rank, or none."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int


def allocation(section: Slurm | Manifest, world: int) -> Allocation | Problem:
    """Allocate nodes for `world` ranks, or a problem where the section's numbers do not fit."""
    tasks, gpus, nodes = section.tasks_per_node, section.gpus_per_node, section.nodes
    if tasks and gpus and tasks != gpus:
        message = f"{tasks} ranks on a machine of {gpus} GPUs; each rank has one GPU."
        hint = f"leave it out, or launch.gpus_per_node={tasks}"
        return Problem(f"launch.tasks_per_node={tasks}", message, hint)
    most = tasks or gpus
    if nodes is None:
        per_node = min(most or world, world)
        nodes = world // per_node
    else:
        per_node = most or max(world // nodes, 1)
    if nodes * per_node != world:
        return _misfit(section, world, nodes, per_node)
    on_gpus = 0 if gpus == 0 else per_node
    return Allocation(nodes=nodes, tasks_per_node=per_node, gpus_per_node=on_gpus)


def allocation_faults(section: Slurm) -> Iterator[Problem]:
    """Find faults of the section at any number of ranks."""
    minutes, signal_seconds = section.time, section.signal_before
    if signal_seconds >= 60 * minutes:
        message = f"a job of launch.time={minutes} minutes has {60 * minutes} s only."
        hint = f"launch.signal_before={30 * minutes} or launch.time={signal_seconds // 60 + 1}"
        yield Problem(f"launch.signal_before={signal_seconds}", message, hint)
    yield from key_faults(section)


def _misfit(section: Slurm | Manifest, world: int, nodes: int, per_node: int) -> Problem:
    if section.nodes is None:
        key = "launch.tasks_per_node" if section.tasks_per_node else "launch.gpus_per_node"
        message = f"{world} ranks do not fill machines of {per_node}."
        dividing = max(n for n in range(1, per_node + 1) if world % n == 0)
        hint = f"{key}={dividing}, or parallel degrees whose product is a multiple of {per_node}"
        return Problem(f"{key}={per_node}", message, hint)
    capacity = f"{nodes} machines x {per_node} = {nodes * per_node}"
    hint = f"parallel degrees whose product is {nodes * per_node}"
    if world % per_node == 0:
        hint = f"launch.nodes={world // per_node}, or leave it out; or {hint}"
    return Problem(
        f"launch.nodes={nodes}", f"the mesh has {world} ranks, and the job {capacity}.", hint
    )
