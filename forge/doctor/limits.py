"""Limits of this process on cores and memory, also in a container or a Slurm job."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from forge.config.numbers import GIB, byte_size
from forge.doctor.finding import Finding, missing, ok, warn

ENOUGH_MEMORY, LEAST_MEMORY = 2 * GIB, GIB // 2
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NO_LIMIT = 2**60  # cgroups of version 1 write almost 2^63


def threads(
    usable: int,
    cores: int,
    torch_threads: int | None,
    num_threads: int,
    environ: Mapping[str, str] = os.environ,
) -> Finding:
    """Compare the threads of torch with the usable cores; None where torch cannot be asked."""
    omp, chosen = environ.get("OMP_NUM_THREADS"), num_threads or torch_threads
    source = f"OMP_NUM_THREADS={omp}" if omp else "torch's choice"
    source = f"run.num_threads={num_threads}" if num_threads else source
    chosen_text = f"{chosen} threads a rank ({source})" if chosen else "torch cannot be asked"
    summary = f"{usable} of {cores} cores may be used; {chosen_text}"
    if chosen and chosen > usable:
        hint = f"run.num_threads={usable}, or OMP_NUM_THREADS={usable}"
        return warn("threads", f"{summary}: more threads than cores wait for each other", hint)
    if chosen and chosen < usable / 2:
        unset = "" if num_threads or not omp else "unset OMP_NUM_THREADS, or "
        message = f"{summary}: more than half of the cores are idle when there is one rank"
        return warn("threads", message, f"{unset}run.num_threads={usable}")
    return ok("threads", summary)


def memory(free: int | None, limit: int | None) -> Finding:
    """Check the free memory, in bytes; `limit` is the memory left by the cgroup."""
    available = min((size for size in (free, limit) if size is not None), default=None)
    if available is None:
        return ok("memory", "how much is free is not known")
    summary = f"{byte_size(available)} free"
    hint = "end other programs"
    if available != free:
        hint = "ask for more: --mem of Slurm, --memory of Docker"
        summary += f" ({byte_size(free)} on the machine)" if free is not None else ""
    if available < LEAST_MEMORY:
        return missing("memory", summary, hint, needed=True)
    if available < ENOUGH_MEMORY:
        return warn("memory", summary, f"{hint}; or lower train.batch_size")
    return ok("memory", summary)


def usable_cores(quota: float | None) -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores if quota is None else max(min(cores, math.floor(quota)), 1)


def free_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    for line in read_value(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Cores allowed by the strictest cgroup above this process; None without a limit."""
    quotas = []
    for folder in _folders("cpu", root, membership):
        of_version_1 = [read_value(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = read_value(folder / "cpu.max").split() or of_version_1
        if quota not in ("", "max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes left by the strictest cgroup above this process; None without a limit.

    File cache counts as free.
    """
    margins = []
    for folder in _folders("memory", root, membership):
        for names in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            limit, used = (read_value(folder / f"memory.{name}") for name in names)
            if limit and used and limit != "max" and int(limit) < NO_LIMIT:
                lines = read_value(folder / "memory.stat").splitlines()
                rows = dict(line.split() for line in lines if line.count(" ") == 1)
                cache = int(rows.get("inactive_file", rows.get("total_inactive_file", 0)))
                margins.append(max(int(limit) - int(used) + cache, 0))
    return min(margins, default=None)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """The cgroup of this process and the cgroups above, of version 2 or 1, as far as visible in a
    container.
    """
    for line in read_value(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = root / controllers
            cgroup = top / path.lstrip("/")
            for folder in (cgroup, *cgroup.parents):
                if folder.is_relative_to(top) and folder.is_dir():
                    yield folder


def read_value(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
