"""How the number of ranks and the device are found, without torch."""

from __future__ import annotations

import copy
import importlib.metadata
import platform
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.refusing import resolved

from forge.config.launch import Launch, Local, Slurm
from forge.config.parallel import Parallel
from forge.config.plan import Plan
from forge.config.root import Config
from forge.config.run import Run
from forge.planning.world import (
    CPU_BUILD,
    Devices,
    World,
    find_devices,
    ranks_per_node,
    world_of,
)
from forge.resolve.auto import device_memory
from forge.resolve.rules.devices import host_memory

FOUR = Devices(gpus=4, source="NVML")
NONE = Devices(gpus=0, source="no NVIDIA driver")
CPU = Devices(gpus=0, source=CPU_BUILD)
DEGREES = "the parallel degrees"


def found(
    launch: Launch,
    parallel: dict[str, Any],
    run: dict[str, Any] | None = None,
    here: Devices = NONE,
    **environ: str,
) -> World:
    run_section = Run(**(run or {}))
    config = Config(launch=launch, parallel=Parallel(**parallel), run=run_section, plan=Plan())
    return world_of(config, here, environ)


@pytest.mark.parametrize(
    ("run", "parallel", "devices", "environ", "size", "source"),
    [
        ({"num_processes": 3}, {"dp_shard": 2}, FOUR, {"WORLD_SIZE": "8"}, 8, "WORLD_SIZE"),
        ({"num_processes": 3}, {"dp_shard": 2}, FOUR, {}, 3, "run.num_processes"),
        ({}, {"dp_shard": 2, "tp": 3}, FOUR, {"WORLD_SIZE": ""}, 6, DEGREES),
        ({}, {"dp_shard": -1, "tp": 2}, FOUR, {}, 4, "NVML"),
        ({"device": "cpu"}, {"dp_shard": -1}, FOUR, {}, 1, "a CPU"),
        ({}, {"dp_shard": -1, "tp": 2, "dp_replicate": 2}, NONE, {}, 4, DEGREES),
        ({"device": "cuda"}, {"dp_shard": -1}, NONE, {}, 1, "no NVIDIA driver"),
        ({}, {"dp_shard": 0}, NONE, {}, 1, "a CPU"),
    ],
)
def test_the_order_of_sources(
    run: dict, parallel: dict, devices: Devices, environ: dict, size: int, source: str
):
    world = found(Local(), parallel, run, devices, **environ)
    assert (world.size, world.source, world.remote) == (size, source, False)


@pytest.mark.parametrize(
    ("launch", "parallel", "run", "size", "source"),
    [
        ("nodes gpus_per_node", {"dp_shard": -1}, {"num_processes": 3}, 3, "run.num_processes"),
        ("nodes gpus_per_node", {"dp_shard": 2, "tp": 2}, {}, 4, DEGREES),
        ("nodes gpus_per_node", {"dp_shard": -1}, {}, 16, "launch.nodes=4 * launch.{}=4"),
        ("nodes tasks_per_node", {"dp_shard": -1}, {}, 16, "launch.nodes=4 * launch.{}=4"),
        ("gpus_per_node", {"dp_shard": -1}, {}, 4, "launch.{}=4, on one node"),
        ("nodes", {"dp_shard": -1}, {}, 4, DEGREES),
        ("", {"dp_shard": -1, "tp": 4}, {}, 4, DEGREES),
        ("", {"dp_shard": -1}, {}, 1, DEGREES),
    ],
)
def test_the_order_of_sources_of_a_slurm_job(
    launch: str, parallel: dict, run: dict, size: int, source: str
):
    names = launch.split()
    options: dict[str, Any] = dict.fromkeys(names, 4)
    world = found(Slurm(**options), parallel, run)
    assert (world.size, world.source) == (size, source.format(*names[-1:]))
    assert world.remote
    assert world.elsewhere


@pytest.mark.parametrize(
    ("launch", "asked", "here", "device", "gpus"),
    [
        (Local(), "auto", FOUR, "cuda", 4),
        (Local(), "auto", NONE, "cpu", 0),
        (Local(), "cpu", FOUR, "cpu", 4),
        (Local(), "cuda", NONE, "cuda", 0),
        (Slurm(nodes=2, gpus_per_node=4), "auto", NONE, "cuda", 4),
        (Slurm(nodes=2), "auto", NONE, "cuda", 1),
        (Slurm(gpus_per_node=0, tasks_per_node=4), "auto", NONE, "cpu", 0),
        (Slurm(gpus_per_node=4), "cpu", NONE, "cpu", 0),
        (Slurm(gpus_per_node=4), "auto", CPU, "cpu", 0),
        (Slurm(gpus_per_node=4), "cuda", CPU, "cuda", 0),
    ],
)
def test_the_device(launch: Launch, asked: str, here: Devices, device: str, gpus: int):
    """A machine without GPUs may submit a run that takes them; one whose torch is built for CPUs
    may not.
    """
    world = found(launch, {"dp_shard": -1}, {"device": asked}, here)
    assert (world.device, world.devices.gpus) == (device, gpus)


def fail(*_):
    raise RuntimeError("NVML_ERROR_DRIVER_NOT_LOADED")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Three GPUs, of 90, 89 and 88 bytes."""
    module = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=90 - index),
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cu130")
    return module


@pytest.mark.parametrize(
    ("visible", "gpus"), [("0,1", 2), ("", 0), ("-1", 0), (" 0 , 2 ", 2), ("0,-1,2", 1), ("GPU", 1)]
)
def test_visible_devices_are_counted_first(visible: str, gpus: int, nvml: SimpleNamespace):
    source, memory = f"CUDA_VISIBLE_DEVICES={visible}", 88 if gpus else None
    wanted = Devices(gpus=gpus, source=source, memory=memory, torch=(2, 13))
    assert find_devices({"CUDA_VISIBLE_DEVICES": visible}) == wanted


@pytest.mark.parametrize(
    ("broken", "gpus", "source", "memory"),
    [
        ("", 3, "NVML", 88),
        ("nvmlDeviceGetMemoryInfo", 3, "NVML", None),
        ("nvmlInit", 0, "no NVIDIA driver", None),
        ("nvmlDeviceGetCount", 0, "no NVIDIA driver", None),
    ],
)
def test_nvml_counts_where_no_variable_does(
    broken: str, gpus: int, source: str, memory: int | None, nvml: SimpleNamespace
):
    closed = []
    nvml.nvmlShutdown = lambda: closed.append(True)
    setattr(nvml, broken, fail)
    assert find_devices({}) == Devices(gpus=gpus, source=source, memory=memory, torch=(2, 13))
    assert closed == [True] * (broken != "nvmlInit")


@pytest.mark.parametrize(
    ("system", "machine", "apple"),
    [("Darwin", "arm64", True), ("Darwin", "x86_64", False), ("Linux", "arm64", False)],
)
def test_apple_silicon_is_macos_on_arm(
    system: str, machine: str, apple: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert find_devices({"CUDA_VISIBLE_DEVICES": ""}).apple is apple


@pytest.mark.parametrize(
    ("version", "source", "torch"),
    [
        ("2.13.0+cpu", CPU_BUILD, (2, 13)),
        ("2.13.0a0+git1", "NVML", (2, 13)),
        ("nightly", "NVML", None),
    ],
)
def test_the_version_of_torch_and_whether_it_is_a_cpu_build(
    version: str,
    source: str,
    torch: tuple[int, int] | None,
    nvml: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    devices = find_devices({})
    assert (devices.source, devices.torch) == (source, torch)


@pytest.mark.parametrize(
    ("size", "device", "devices", "environ", "ranks"),
    [
        (8, "cuda", FOUR, {}, 4),
        (8, "cuda", FOUR, {"LOCAL_WORLD_SIZE": "2"}, 2),
        (6, "cuda", FOUR, {}, 6),
        (8, "cpu", FOUR, {}, 8),
    ],
)
def test_ranks_of_a_node(size: int, device: str, devices: Devices, environ: dict, ranks: int):
    world = World(size=size, source="the test", device=device, devices=devices)
    assert ranks_per_node(world, environ) == ranks


def test_a_run_on_the_nodes_of_a_cluster():
    nodes = ["launch=slurm", "launch.nodes=2", "launch.gpus_per_node=4"]
    config = resolved([*nodes, "parallel=fsdp", "parallel.tp=2"], gpus=0).config
    assert (config.parallel.tp, config.parallel.dp_shard, config.run.device) == (2, 4, "cuda")
    on_cpu = resolved(["launch=slurm", "run.device=cpu"])
    assert isinstance(on_cpu.config.launch, Slurm)
    assert on_cpu.config.launch.gpus_per_node == 0


def test_a_large_model_needs_no_memory_of_the_machine_that_submits_it():
    config = copy.deepcopy(resolved(["run.device=cpu", "model=llama70b", "parallel.tp=8"]).config)
    here = World(size=8, source=DEGREES, device="cpu", devices=NONE)
    assert device_memory(here)
    assert list(host_memory.check(config, here))
    assert list(host_memory.check(config, replace(here, remote=True))) == []


def test_ranks_that_a_launcher_has_started_count_first():
    world = found(Slurm(nodes=2, gpus_per_node=4), {"dp_shard": -1}, WORLD_SIZE="3")
    assert (world.size, world.source, world.remote) == (3, "WORLD_SIZE", False)
