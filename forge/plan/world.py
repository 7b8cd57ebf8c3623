"""How many ranks a run has and on what device, and how that was found out; torch is never imported
for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from types import ModuleType

from forge.config.parallel import Parallel
from forge.config.run import Run
from forge.plan.launcher_environment import launcher_ranks

CPU_BUILD = "torch is a CPU build"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What this machine has: GPUs that torch can use, and where the count comes from."""

    gpus: int
    source: str
    memory: int | None = None
    """Bytes of the smallest GPU, where NVML tells."""
    torch: tuple[int, int] | None = None
    """Version of torch, where it is installed."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Number of ranks, what they run on, and where both come from."""

    size: int
    source: str
    device: str
    devices: Devices
    remote: bool = False
    """Whether the ranks run on other machines than this one: devices are those of one of them, as
    far as that is known.
    """

    @property
    def elsewhere(self) -> bool:
        """Whether another launcher starts the ranks, on other machines too."""
        return self.remote or self.source in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def find_devices(environ: Mapping[str, str] = os.environ) -> Devices:
    """GPUs by CUDA_VISIBLE_DEVICES, else by NVML, else none; none as well under a CPU build of
    torch.
    """
    build, torch = _torch_build(), _torch_version()
    if build == "cpu":
        return Devices(gpus=0, source=CPU_BUILD, torch=torch)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = list(
            takewhile(
                lambda name: name not in ("", "-1"), (name.strip() for name in visible.split(","))
            )
        )
        memory = min(_nvml_memories() or [0]) if names else 0
        return Devices(
            gpus=len(names),
            source=f"CUDA_VISIBLE_DEVICES={visible}",
            memory=memory or None,
            torch=torch,
        )
    memories = _nvml_memories()
    source = "no NVIDIA driver" if memories is None else "NVML"
    return Devices(
        gpus=len(memories or []), source=source, memory=min(memories or [0]) or None, torch=torch
    )


def find_world(
    run: Run, parallel: Parallel, devices: Devices, environ: Mapping[str, str] = os.environ
) -> World:
    """World size from, in order: torchrun or srun, run.num_processes, a layout without -1, the
    devices. Raises ConfigError.

    Ranks on a CPU are as many as asked for: there dp_shard=-1 is 1.
    """
    device = run.device if run.device != "auto" else ("cuda" if devices.gpus else "cpu")
    layout = prod(parallel.degrees().values())
    said = launcher_ranks(environ)
    if said is not None:
        size, source = said
    elif run.num_processes is not None:
        size, source = run.num_processes, "run.num_processes"
    elif parallel.dp_shard > 0:
        size, source = layout, "the parallel degrees"
    elif device == "cuda":
        size, source = max(devices.gpus, 1), devices.source
    elif parallel.product_without_dp_shard > 1:
        size, source = parallel.product_without_dp_shard, "the parallel degrees"
    else:
        size, source = 1, "a CPU"
    return World(size=size, source=source, device=device, devices=devices)


def ranks_per_node(world: World, environ: Mapping[str, str] = os.environ) -> int:
    """How many of the ranks a machine has: as the launcher says, else as many as it has GPUs; all
    where that does not divide them.
    """
    said = next(
        (
            environ[name]
            for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
            if environ.get(name, "").isdecimal()
        ),
        None,
    )
    count = int(said) if said else world.devices.gpus if world.device == "cuda" else world.size
    return count if 0 < count < world.size and world.size % count == 0 else world.size


def ranks_of(size: int) -> str:
    """'1 rank' or '8 ranks'."""
    return "1 rank" if size == 1 else f"{size} ranks"


def _torch_build() -> str:
    version = _installed_torch()
    if version is None:
        return "missing"
    return "cpu" if version.endswith("+cpu") else "cuda"


def _torch_version() -> tuple[int, int] | None:
    try:
        major, minor = (_installed_torch() or "").split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return None


def _installed_torch() -> str | None:
    from importlib import (
        metadata,
    )  # it takes a while, and most commands that only compose do not ask

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _nvml_memories() -> list[int] | None:
    """Bytes of each GPU of this machine, 0 where it does not say; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return [_nvml_memory(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return None


def _nvml_memory(pynvml: ModuleType, index: int) -> int:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).total)
    except Exception:
        return 0
