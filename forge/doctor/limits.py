"""What this process may use: cores, memory, open files, within the limits of a container or a Slurm
job.
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from forge.config.numbers import GIB, byte_size
from forge.doctor.finding import Finding, missing, ok, warn

ENOUGH_MEMORY, LEAST_MEMORY = 2 * GIB, GIB // 2
ENOUGH_FILES, MANY_FILES = 1024, 65536
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
NO_LIMIT = 2**60  # cgroups of version 1 write almost 2^63


def threads(
    usable: int,
    cores: int,
    torch_threads: int | None,
    num_threads: int,
    environ: Mapping[str, str] = os.environ,
) -> Finding:
    """Threads of torch against the cores that this process may use.

    torch_threads: what torch chose, None where it is not known. num_threads: run.num_threads, 0 for
    torch's choice.
    """
    omp, chosen = environ.get("OMP_NUM_THREADS"), num_threads or torch_threads
    source = f"OMP_NUM_THREADS={omp}" if omp else "torch's choice"
    source = f"run.num_threads={num_threads}" if num_threads else source
    said = f"{chosen} threads a rank ({source})" if chosen else "torch cannot be asked"
    found = f"{usable} of {cores} cores may be used; {said}"
    if chosen and chosen > usable:
        fix = f"run.num_threads={usable}, or OMP_NUM_THREADS={usable}"
        return warn("threads", f"{found}: more threads than cores wait for each other", fix)
    if chosen and chosen < usable / 2:
        unset = "" if num_threads or not omp else "unset OMP_NUM_THREADS, or "
        what = f"{found}: more than half of the cores are idle when there is one rank"
        return warn("threads", what, f"{unset}run.num_threads={usable}")
    return ok("threads", found)


def memory(free: int | None, limit: int | None) -> Finding:
    """Memory that is free, in bytes; `limit` is what the cgroup leaves of it."""
    known = [size for size in (free, limit) if size is not None]
    if not known:
        what = "neither /proc/meminfo nor a cgroup tells how much is free"
        return warn("memory", what, "none is needed where there is enough")
    left, found = min(known), f"{byte_size(min(known))} free"
    fix = "end other programs"
    if left != free:
        fix = "ask for more: --mem of Slurm, --memory of Docker"
        found += f" ({byte_size(free)} on the machine)" if free is not None else ""
    if left < LEAST_MEMORY:
        return missing("memory", found, fix, needed=True)
    if left < ENOUGH_MEMORY:
        return warn("memory", found, f"{fix}; or lower train.batch_size")
    return ok("memory", found)


def open_files(soft: int | None = None, hard: int | None = None) -> Finding:
    """The limit of open files; data loaders and ranks take many."""
    if soft is None or hard is None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [math.inf if n == resource.RLIM_INFINITY else n for n in (soft, hard)]
    texts = ["unlimited" if n == math.inf else f"{n:,}" for n in limits]
    found = f"{texts[0]} (at most {texts[1]})"
    if limits[0] >= ENOUGH_FILES:
        return ok("open files", found)
    fix = f"ulimit -n {min(limits[1], MANY_FILES)}"
    return warn(
        "open files", found, fix if limits[1] >= ENOUGH_FILES else "ask the administrator for more"
    )


def usable_cores(quota: float | None) -> int:
    """Cores by affinity, or fewer where a quota of the cgroup allows fewer."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores if quota is None else max(min(cores, math.floor(quota)), 1)


def free_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can be taken without swapping."""
    for line in _read(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Cores that the strictest cgroup above this process allows; None when none limits it."""
    quotas = []
    for folder in _folders("cpu", root, membership):
        versions = _read(folder / "cpu.max").split() or [
            _read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        ]
        if versions[0] not in ("", "max", "-1"):
            quotas.append(int(versions[0]) / int(versions[1]))
    return min(quotas, default=None)


def memory_left(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes that the strictest cgroup above this process leaves; None when none limits it. File
    cache counts as free.
    """
    left = []
    for folder in _folders("memory", root, membership):
        for names in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):
            limit, used = (_read(folder / f"memory.{name}") for name in names)
            if limit and used and limit != "max" and int(limit) < NO_LIMIT:
                lines = _read(folder / "memory.stat").splitlines()
                rows = dict(line.split() for line in lines if line.count(" ") == 1)
                cache = int(rows.get("inactive_file", rows.get("total_inactive_file", 0)))
                left.append(max(int(limit) - int(used) + cache, 0))
    return min(left, default=None)


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """The cgroup of this process and those above it, of version 2 or 1, as far as a container shows
    them.
    """
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = root / controllers
            here = top / path.lstrip("/")
            above = [folder for folder in (here, *here.parents) if folder.is_relative_to(top)]
            yield from (folder for folder in above if folder.is_dir())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
