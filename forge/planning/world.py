"""Number of ranks of a run, their device, and the source of both; without an import of torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod

from forge.config.devices import DEVICES
from forge.config.launch import Manifest, Slurm
from forge.config.numbers import counted
from forge.config.parallel import Parallel
from forge.config.problems import refusal
from forge.config.root import Config
from forge.config.run import Run
from forge.planning.launcher_environment import launcher_ranks

CPU_BUILD = "torch is a CPU build"
DEGREES = "the parallel degrees"


@dataclass(frozen=True, kw_only=True)
class Devices:
    """The GPUs of a machine: count, source of the count, bytes of the smallest; torch's version;
    whether the machine is Apple silicon.
    """

    gpus: int
    source: str
    memory: int | None = None
    torch: tuple[int, int] | None = None
    apple: bool = False


@dataclass(frozen=True, kw_only=True)
class World:
    """Number of ranks with its source, device and machine. remote: on other machines; devices are
    then one such machine's. planned: only assumed, for plans; no run can start.
    """

    size: int
    source: str
    device: str
    devices: Devices
    remote: bool = False
    planned: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether another launcher starts the ranks, on other machines too."""
        return self.remote or self.source in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def find_devices(environ: Mapping[str, str] = os.environ) -> Devices:
    """GPUs by CUDA_VISIBLE_DEVICES, else by NVML; none under a CPU build of torch."""
    apple = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    return replace(_find_gpus(environ), apple=apple)


def _find_gpus(environ: Mapping[str, str]) -> Devices:
    installed = _installed_torch()
    numbers = (installed or "").split(".")[:2]
    is_version = len(numbers) == 2 and all(map(str.isdecimal, numbers))
    torch = (int(numbers[0]), int(numbers[1])) if is_version else None
    if installed is not None and installed.endswith("+cpu"):
        return Devices(gpus=0, source=CPU_BUILD, torch=torch)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    memories = None if visible == "" else _nvml_memories()
    smallest = min(memories or [0]) or None
    if visible is None:
        source = "no NVIDIA driver" if memories is None else "NVML"
        return Devices(gpus=len(memories or []), source=source, memory=smallest, torch=torch)
    names = (name.strip() for name in visible.split(","))
    count = len(list(takewhile(lambda name: name not in ("", "-1"), names)))
    memory = smallest if count else None
    source = f"CUDA_VISIBLE_DEVICES={visible}"
    return Devices(gpus=count, source=source, memory=memory, torch=torch)


def world_of(config: Config, devices: Devices, environ: Mapping[str, str] = os.environ) -> World:
    """The ranks of a run; of one that becomes a job on other machines the ranks of the job, unless
    already started by a launcher. devices: of this machine. Raises ConfigError.
    """
    plan = config.plan
    if isinstance(config.launch, Slurm | Manifest) and launcher_ranks(environ) is None:
        planned = plan.device in DEVICES and devices.source == CPU_BUILD
        local_devices = replace(devices, source="plan") if planned else devices
        world = _of_job(config, config.launch, local_devices)
        if plan.device in DEVICES and world.device == "cuda":
            planned_devices = replace(world.devices, memory=DEVICES[plan.device].memory)
            world = replace(world, devices=planned_devices, planned=planned)
        return world
    if plan.device in DEVICES or plan.world_size:
        return _planned(config, devices)
    return find_world(config.run, config.parallel, devices, environ)


def _planned(config: Config, here: Devices) -> World:
    """World size from, in order: plan.world_size, run.num_processes, a layout without -1, the GPUs
    of one machine.
    """
    run, plan = config.run, config.plan
    size, source = plan.gpus_per_node, "plan.gpus_per_node"
    if plan.world_size:
        size, source = plan.world_size, "plan.world_size"
    elif size_and_source := _given_ranks(run, config.parallel):
        size, source = size_and_source
    device = run.device if run.device != "auto" else "cuda"
    gpu = DEVICES.get(plan.device or "")
    memory = gpu.memory if gpu else None
    gpus = min(plan.gpus_per_node, size) if device == "cuda" else 0
    gpu_source = f"plan.device={plan.device}" if memory else "plan.gpus_per_node"
    planned_devices = replace(here, gpus=gpus, source=gpu_source, memory=memory)
    return World(
        size=size, source=source, device=device, devices=planned_devices, remote=True, planned=True
    )


def find_world(
    run: Run, parallel: Parallel, devices: Devices, environ: Mapping[str, str] = os.environ
) -> World:
    """World size from, in order: torchrun or srun, run.num_processes, a layout without -1, the
    devices. Raises ConfigError.

    On a CPU the number of ranks is as given, and dp_shard=-1 is 1.
    """
    device = run.device if run.device != "auto" else ("cuda" if devices.gpus else "cpu")
    if size_and_source := launcher_ranks(environ) or _given_ranks(run, parallel):
        size, source = size_and_source
    elif device == "cuda":
        size, source = max(devices.gpus, 1), devices.source
    elif parallel.product_without_dp_shard > 1:
        size, source = parallel.product_without_dp_shard, DEGREES
    else:
        size, source = 1, "a CPU" if device == "cpu" else f"run.device={device}"
    return World(size=size, source=source, device=device, devices=devices)


def _of_job(config: Config, section: Slurm | Manifest, here: Devices) -> World:
    """World size from, in order: run.num_processes, a layout without -1, launch.nodes times ranks a
    node, the ranks of one node.
    """
    run, parallel, nodes = config.run, config.parallel, section.nodes
    # The image of a job elsewhere has its own torch.
    cpu_build = here.source == CPU_BUILD and isinstance(section, Slurm)
    on_cpu = section.gpus_per_node == 0 or cpu_build
    device = run.device if run.device != "auto" else "cpu" if on_cpu else "cuda"
    name = "tasks_per_node" if section.tasks_per_node else "gpus_per_node"
    per_node = section.tasks_per_node or section.gpus_per_node
    if size_and_source := _given_ranks(run, parallel):
        size, source = size_and_source
    elif nodes and per_node:
        size, source = nodes * per_node, f"launch.nodes={nodes} * launch.{name}={per_node}"
    elif per_node:
        size, source = per_node, f"launch.{name}={per_node}, on one node"
    else:
        size, source = max(parallel.product_without_dp_shard, nodes or 1), DEGREES
    devices = Devices(
        gpus=0, source=CPU_BUILD if cpu_build else f"launch={section.schema_name}", torch=here.torch
    )
    if device == "cuda" and not on_cpu:
        devices = replace(devices, gpus=min(per_node or -(-size // (nodes or 1)), size))
    return World(size=size, source=source, device=device, devices=devices, remote=True)


def _given_ranks(run: Run, parallel: Parallel) -> tuple[int, str] | None:
    if run.num_processes is not None:
        return run.num_processes, "run.num_processes"
    return (prod(parallel.degrees().values()), DEGREES) if parallel.dp_shard > 0 else None


def check_startable(world: World) -> None:
    """Raise ConfigError for ranks on planned machines."""
    if world.planned:
        message = f"{ranks_of(world.size)} on machines that are not here cannot be started."
        hint = "forge.check in place of this verb, or leave plan.device and plan.world_size out"
        raise refusal("plan", message, hint)


def ranks_per_node(world: World, environ: Mapping[str, str] = os.environ) -> int:
    """Ranks on a machine: the launcher's number, else the number of GPUs; all ranks where the
    number does not divide the world.
    """
    names = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
    numbers = (int(environ[name]) for name in names if environ.get(name, "").isdecimal())
    count = next(numbers, world.devices.gpus if world.device == "cuda" else world.size)
    return count if 0 < count < world.size and world.size % count == 0 else world.size


def ranks_of(size: int) -> str:
    """'1 rank' or '8 ranks'."""
    return counted(size, "rank")


def _installed_torch() -> str | None:
    from importlib import metadata  # slow, and unused by most commands

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _nvml_memories() -> list[int] | None:
    """Bytes of each GPU of this machine, 0 for an unreadable one; None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return [_nvml_memory(handle) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        return None


def _nvml_memory(handle: object) -> int:
    import pynvml

    with suppress(Exception):
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    return 0
