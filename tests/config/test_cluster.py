"""The ranks of a job of Slurm: from the layout and the launch section, not from this machine."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from refusing import resolved

from forge.config.launch import Slurm
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.config.run import Run
from forge.plan import cluster
from forge.plan.world import CPU_BUILD, Devices, World
from forge.resolve.auto import device_memory
from forge.resolve.rules.devices import host_memory
from forge.resolve.rules.launch import unused_gpus

GPU_BUILD = Devices(gpus=0, source="no NVIDIA driver", torch=(2, 11))


def world(
    launch: dict[str, Any],
    parallel: dict[str, Any],
    run: dict[str, Any] | None = None,
    here: Devices = GPU_BUILD,
    **environ: str,
):
    config = Config(launch=Slurm(**launch), parallel=Parallel(**parallel), run=Run(**(run or {})))
    return cluster.world_of(config, here, environ)


@pytest.mark.parametrize(
    ("launch", "parallel", "run", "size", "source"),
    [
        (
            {"nodes": 2, "gpus_per_node": 4},
            {"dp_shard": -1, "tp": 2},
            {"num_processes": 3},
            3,
            "run.num_processes",
        ),
        ({"nodes": 2, "gpus_per_node": 4}, {"dp_shard": 2, "tp": 2}, {}, 4, "the parallel degrees"),
        (
            {"nodes": 2, "gpus_per_node": 4},
            {"dp_shard": -1},
            {},
            8,
            "launch.nodes=2 * launch.gpus_per_node=4",
        ),
        (
            {"nodes": 2, "tasks_per_node": 3, "gpus_per_node": 3},
            {"dp_shard": -1},
            {},
            6,
            "launch.nodes=2 * launch.tasks_per_node=3",
        ),
        ({"gpus_per_node": 4}, {"dp_shard": -1}, {}, 4, "launch.gpus_per_node=4, on one node"),
        ({"nodes": 2}, {"dp_shard": -1}, {}, 2, "the parallel degrees"),
        ({}, {"dp_shard": -1, "tp": 4}, {}, 4, "the parallel degrees"),
        ({}, {"dp_shard": -1}, {}, 1, "the parallel degrees"),
    ],
)
def test_the_number_of_ranks(
    launch: dict, parallel: dict, run: dict, size: int, source: str
) -> None:
    found = world(launch, parallel, run)
    assert (found.size, found.source, found.remote, found.elsewhere) == (size, source, True, True)


@pytest.mark.parametrize(
    ("launch", "device", "here", "found", "gpus"),
    [
        ({"nodes": 2, "gpus_per_node": 4}, "auto", GPU_BUILD, "cuda", 4),
        ({"nodes": 2}, "auto", GPU_BUILD, "cuda", 1),
        ({"gpus_per_node": 0, "tasks_per_node": 4}, "auto", GPU_BUILD, "cpu", 0),
        ({"gpus_per_node": 4}, "cpu", GPU_BUILD, "cpu", 0),
        ({"gpus_per_node": 4}, "auto", Devices(gpus=0, source=CPU_BUILD), "cpu", 0),
        ({"gpus_per_node": 4}, "cuda", Devices(gpus=0, source=CPU_BUILD), "cuda", 0),
    ],
)
def test_the_device(launch: dict, device: str, here: Devices, found: str, gpus: int) -> None:
    """A machine without GPUs may submit a run that takes them; one whose torch is built for CPUs
    may not.
    """
    there = world(launch, {"dp_shard": -1}, {"device": device}, here)
    assert (there.device, there.devices.gpus) == (found, gpus)


def test_ranks_that_have_been_started_already_count() -> None:
    found = world({"nodes": 2, "gpus_per_node": 4}, {"dp_shard": -1}, WORLD_SIZE="3")
    assert (found.size, found.source, found.remote) == (3, "WORLD_SIZE", False)


def test_the_mesh_of_a_run_on_the_gpus_of_nodes() -> None:
    config = resolved(
        ["launch=slurm", "launch.nodes=2", "launch.gpus_per_node=4", "parallel=fsdp", "parallel.tp=2"], gpus=0
    ).config
    assert (config.parallel.tp, config.parallel.dp_shard, config.run.device) == (2, 4, "cuda")
    assert (config.launch.gpus_per_node, config.launch.nodes) == (4, 2)


def test_ranks_on_cpus_take_no_gpus() -> None:
    resolution = resolved(["launch=slurm", "run.device=cpu"])
    assert resolution.config.launch.gpus_per_node == 0
    assert [d.why for d in resolution.derived if d.key == "launch.gpus_per_node"] == [
        "run.device=cpu"
    ]


def test_a_large_model_is_no_matter_of_this_machines_memory() -> None:
    config = copy.deepcopy(resolved(["run.device=cpu", "model=llama70b", "parallel=tp8"]).config)
    found = Devices(gpus=0, source="none")
    here = World(size=8, source="the parallel degrees", device="cpu", devices=found)
    assert device_memory(here)
    assert list(host_memory.check(config, here))
    assert list(host_memory.check(config, replace(here, remote=True))) == []


@pytest.mark.parametrize(
    ("here", "fix"),
    [
        (GPU_BUILD, "launch.gpus_per_node=0, or run.device=cuda"),
        (
            Devices(gpus=0, source=CPU_BUILD),
            "launch.gpus_per_node=0, or a CUDA build of torch, for this one is for CPUs",
        ),
    ],
)
def test_gpus_that_are_not_used(here: Devices, fix: str) -> None:
    config = Config(launch=Slurm(gpus_per_node=8), parallel=Parallel(), run=Run(device="cpu"))
    (problem,) = unused_gpus.check(config, cluster.world_of(config, here, {}))
    assert (problem.key, problem.fix) == ("launch.gpus_per_node=8", fix)
