"""How the number of ranks and the device are found, without torch."""

from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from forge.config.parallel import Parallel
from forge.config.run import Run
from forge.plan import world
from forge.plan.world import Devices, World, find_devices, find_world, ranks_per_node

FOUR = Devices(gpus=4, source="NVML")
NONE = Devices(gpus=0, source="no NVIDIA driver")


@pytest.mark.parametrize(
    ("run", "parallel", "devices", "environ", "size", "source"),
    [
        ({"num_processes": 3}, {"dp_shard": 2}, FOUR, {"WORLD_SIZE": "8"}, 8, "WORLD_SIZE"),
        ({"num_processes": 3}, {"dp_shard": 2}, FOUR, {}, 3, "run.num_processes"),
        ({}, {"dp_shard": 2, "tp": 3}, FOUR, {}, 6, "the parallel degrees"),
        ({}, {"dp_shard": -1, "tp": 2}, FOUR, {}, 4, "NVML"),
        ({"device": "cpu"}, {"dp_shard": -1}, FOUR, {}, 1, "a CPU"),
        ({}, {"dp_shard": -1}, NONE, {}, 1, "a CPU"),
        ({}, {"dp_shard": -1, "tp": 2, "dp_replicate": 2}, NONE, {}, 4, "the parallel degrees"),
        ({"device": "cuda"}, {"dp_shard": -1}, NONE, {}, 1, "no NVIDIA driver"),
        ({}, {"dp_shard": 0}, NONE, {}, 1, "a CPU"),
        ({}, {"dp_shard": 1}, FOUR, {"WORLD_SIZE": ""}, 1, "the parallel degrees"),
    ],
)
def test_the_order_of_sources(
    run: dict, parallel: dict, devices: Devices, environ: dict, size: int, source: str
):
    found = find_world(Run(**run), Parallel(**parallel), devices, environ)
    assert (found.size, found.source) == (size, source)


@pytest.mark.parametrize(
    ("device", "devices", "found"),
    [("auto", FOUR, "cuda"), ("auto", NONE, "cpu"), ("cpu", FOUR, "cpu"), ("cuda", NONE, "cuda")],
)
def test_the_device(device: str, devices: Devices, found: str):
    assert find_world(Run(device=device), Parallel(), devices, {}).device == found


@pytest.fixture(autouse=True)
def the_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "_torch_version", lambda: None)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("0,1", 2),
        ("3", 1),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 1),
        (" 0 , 2 ", 2),
        ("0,-1,2", 1),
        ("GPU-8932f937,MIG-1", 2),
    ],
)
def test_visible_devices(visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    assert find_devices({"CUDA_VISIBLE_DEVICES": visible}) == Devices(
        gpus=gpus, source=f"CUDA_VISIBLE_DEVICES={visible}"
    )


def test_a_cpu_build_of_torch_uses_no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert find_devices({"CUDA_VISIBLE_DEVICES": "0,1"}) == Devices(
        gpus=0, source="torch is a CPU build"
    )


@pytest.mark.parametrize(
    ("version", "build"), [("2.13.0+cpu", "cpu"), ("2.13.0", "cuda"), ("2.13.0+cu130", "cuda")]
)
def test_the_build_of_torch(version: str, build: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert world._torch_build() == build


def nvml(**functions) -> SimpleNamespace:
    calls = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlShutdown": lambda: None,
    }
    calls |= {
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(total=90 - index),
    }
    return SimpleNamespace(**{**calls, **functions})


def fail(*_):
    raise RuntimeError("NVML_ERROR_DRIVER_NOT_LOADED")


@pytest.mark.parametrize(
    ("module", "devices"),
    [
        (nvml(), Devices(gpus=3, source="NVML", memory=88)),
        (nvml(nvmlDeviceGetMemoryInfo=fail), Devices(gpus=3, source="NVML")),
        (nvml(nvmlInit=fail), Devices(gpus=0, source="no NVIDIA driver")),
        (nvml(nvmlDeviceGetCount=fail), Devices(gpus=0, source="no NVIDIA driver")),
        (None, Devices(gpus=0, source="no NVIDIA driver")),
    ],
)
def test_nvml_counts_where_no_variable_does(
    module, devices: Devices, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert find_devices({}) == devices


def test_memory_is_known_where_a_variable_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert find_devices({"CUDA_VISIBLE_DEVICES": "1"}) == Devices(
        gpus=1, source="CUDA_VISIBLE_DEVICES=1", memory=88
    )


@pytest.mark.parametrize(
    ("size", "device", "devices", "environ", "found"),
    [
        (8, "cuda", FOUR, {}, 4),
        (8, "cuda", FOUR, {"LOCAL_WORLD_SIZE": "2"}, 2),
        (8, "cuda", FOUR, {"SLURM_NTASKS_PER_NODE": "8"}, 8),
        (6, "cuda", FOUR, {}, 6),
        (2, "cuda", FOUR, {}, 2),
        (8, "cpu", FOUR, {}, 8),
        (8, "cuda", NONE, {}, 8),
        (8, "cuda", FOUR, {"LOCAL_WORLD_SIZE": "0"}, 8),
    ],
)
def test_ranks_of_a_node(size: int, device: str, devices: Devices, environ: dict, found: int):
    assert (
        ranks_per_node(World(size=size, source="the test", device=device, devices=devices), environ)
        == found
    )


def test_nvml_is_closed(monkeypatch: pytest.MonkeyPatch):
    closed = []
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        nvml(nvmlDeviceGetCount=fail, nvmlShutdown=lambda: closed.append(True)),
    )
    find_devices({})
    assert closed == [True]


@pytest.mark.parametrize(
    ("version", "found"), [("2.11.0+cu130", (2, 11)), ("2.13.0a0+git1", (2, 13)), ("nightly", None)]
)
def test_the_version_of_torch(
    version: str, found: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert world.find_devices({"CUDA_VISIBLE_DEVICES": ""}).torch == found
