"""How the number of ranks and the device are found, without torch."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from forge.config import world
from forge.config.parallel import Parallel
from forge.config.run import Run
from forge.config.world import Devices, find_devices, find_world

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
        ({"device": "cuda"}, {"dp_shard": -1}, NONE, {}, 1, "no NVIDIA driver"),
        ({}, {"dp_shard": 0}, NONE, {}, 1, "a CPU"),
        ({}, {"dp_shard": 1}, FOUR, {"WORLD_SIZE": ""}, 1, "the parallel degrees"),
        ({}, {"dp_shard": 1}, FOUR, {"WORLD_SIZE": "two"}, 1, "the parallel degrees"),
        ({}, {"dp_shard": 1}, FOUR, {"WORLD_SIZE": "²"}, 1, "the parallel degrees"),
    ],
)
def test_the_order_of_sources(run: dict, parallel: dict, devices: Devices, environ: dict, size: int, source: str):
    found = find_world(Run(**run), Parallel(**parallel), devices, environ)
    assert (found.size, found.source) == (size, source)


@pytest.mark.parametrize(
    ("device", "devices", "found"), [("auto", FOUR, "cuda"), ("auto", NONE, "cpu"), ("cpu", FOUR, "cpu"), ("cuda", NONE, "cuda")]
)
def test_the_device(device: str, devices: Devices, found: str):
    assert find_world(Run(device=device), Parallel(), devices, {}).device == found


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("0,1", 2), ("3", 1), ("", 0), ("-1", 0), ("NoDevFiles", 1), (" 0 , 2 ", 2), ("0,-1,2", 1), ("GPU-8932f937,MIG-1", 2)],
)
def test_visible_devices(visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    assert find_devices({"CUDA_VISIBLE_DEVICES": visible}) == Devices(gpus=gpus, source=f"CUDA_VISIBLE_DEVICES={visible}")


def test_a_cpu_build_of_torch_uses_no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world.importlib.metadata, "version", lambda name: "2.13.0+cpu")
    assert find_devices({"CUDA_VISIBLE_DEVICES": "0,1"}) == Devices(gpus=0, source="torch is a CPU build")


@pytest.mark.parametrize(("version", "build"), [("2.13.0+cpu", "cpu"), ("2.13.0", "cuda"), ("2.13.0+cu130", "cuda")])
def test_the_build_of_torch(version: str, build: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world.importlib.metadata, "version", lambda name: version)
    assert world._torch_build() == build


def nvml(**functions) -> SimpleNamespace:
    calls = {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 3, "nvmlShutdown": lambda: None}
    return SimpleNamespace(**{**calls, **functions})


def fail():
    raise RuntimeError("NVML_ERROR_DRIVER_NOT_LOADED")


@pytest.mark.parametrize(
    ("module", "devices"),
    [
        (nvml(), Devices(gpus=3, source="NVML")),
        (nvml(nvmlInit=fail), Devices(gpus=0, source="no NVIDIA driver")),
        (nvml(nvmlDeviceGetCount=fail), Devices(gpus=0, source="no NVIDIA driver")),
        (None, Devices(gpus=0, source="no NVIDIA driver")),
    ],
)
def test_nvml_counts_where_no_variable_does(module, devices: Devices, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert find_devices({}) == devices


def test_nvml_is_closed(monkeypatch: pytest.MonkeyPatch):
    closed = []
    monkeypatch.setattr(world, "_torch_build", lambda: "cuda")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetCount=fail, nvmlShutdown=lambda: closed.append(True)))
    find_devices({})
    assert closed == [True]
