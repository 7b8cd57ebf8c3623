"""How many ranks a run has and on what device, and how that was found out; torch is never imported for it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from forge.config.parallel import Parallel
from forge.config.run import Run


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What this machine has: GPUs that torch can use, and where the count comes from."""

    gpus: int
    source: str


@dataclass(frozen=True, kw_only=True)
class World:
    """Number of ranks, what they run on, and where both come from."""

    size: int
    source: str
    device: str
    devices: Devices


def find_devices(environ: Mapping[str, str] = os.environ) -> Devices:
    """GPUs by CUDA_VISIBLE_DEVICES, else by NVML, else none; none as well under a CPU build of torch."""
    build = _torch_build()
    if build == "cpu":
        return Devices(gpus=0, source="torch is a CPU build")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = list(takewhile(lambda name: name not in ("", "-1"), (name.strip() for name in visible.split(","))))
        return Devices(gpus=len(names), source=f"CUDA_VISIBLE_DEVICES={visible}")
    count = _nvml_count()
    return Devices(gpus=count or 0, source="no NVIDIA driver" if count is None else "NVML")


def find_world(run: Run, parallel: Parallel, devices: Devices, environ: Mapping[str, str] = os.environ) -> World:
    """World size from, in order: the launcher's WORLD_SIZE, run.num_processes, a layout without -1, the devices."""
    device = run.device if run.device != "auto" else ("cuda" if devices.gpus else "cpu")
    layout = prod(parallel.degrees().values())
    if environ.get("WORLD_SIZE", "").isdecimal():
        size, source = int(environ["WORLD_SIZE"]), "WORLD_SIZE"
    elif run.num_processes is not None:
        size, source = run.num_processes, "run.num_processes"
    elif parallel.dp_shard > 0:
        size, source = layout, "the parallel degrees"
    elif device == "cuda":
        size, source = max(devices.gpus, 1), devices.source
    else:
        size, source = 1, "a CPU"
    return World(size=size, source=source, device=device, devices=devices)


def _torch_build() -> str:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "missing"
    return "cpu" if version.endswith("+cpu") else "cuda"


def _nvml_count() -> int | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount()
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return None
