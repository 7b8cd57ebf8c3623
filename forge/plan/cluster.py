"""How many ranks a run has where launch=slurm starts them, on machines that this one does not see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from forge.config.launch import Slurm
from forge.config.root import Config
from forge.plan.launcher_environment import launcher_ranks
from forge.plan.world import CPU_BUILD, Devices, World, find_world


def world_of(config: Config, devices: Devices, environ: Mapping[str, str] = os.environ) -> World:
    """The ranks of a run; with launch=slurm those of its job, unless something has started them
    already. devices: of this machine.
    """
    if isinstance(config.launch, Slurm) and launcher_ranks(environ) is None:
        return _of_job(config, config.launch, devices)
    return find_world(config.run, config.parallel, devices, environ)


def _of_job(config: Config, section: Slurm, here: Devices) -> World:
    """Ranks from, in order: run.num_processes, a layout without -1, launch.nodes with the ranks of
    each, the ranks of one node.
    """
    run, parallel = config.run, config.parallel
    on_cpu = section.gpus_per_node == 0 or here.source == CPU_BUILD
    device = run.device if run.device != "auto" else "cpu" if on_cpu else "cuda"
    name = "tasks_per_node" if section.tasks_per_node else "gpus_per_node"
    per_node = section.tasks_per_node or section.gpus_per_node
    if run.num_processes is not None:
        size, source = run.num_processes, "run.num_processes"
    elif parallel.dp_shard > 0:
        size, source = prod(parallel.degrees().values()), "the parallel degrees"
    elif section.nodes and per_node:
        size, source = (
            section.nodes * per_node,
            f"launch.nodes={section.nodes} * launch.{name}={per_node}",
        )
    elif per_node:
        size, source = per_node, f"launch.{name}={per_node}, on one node"
    else:
        size, source = (
            max(parallel.product_without_dp_shard, section.nodes or 1),
            "the parallel degrees",
        )
    found = Devices(
        gpus=0, source=CPU_BUILD if here.source == CPU_BUILD else "launch=slurm", torch=here.torch
    )
    if device == "cuda" and here.source != CPU_BUILD and section.gpus_per_node != 0:
        nodes = section.nodes or 1
        found = replace(found, gpus=min(per_node or -(-size // nodes), size))
    return World(size=size, source=source, device=device, devices=found, remote=True)
