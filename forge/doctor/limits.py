"""What this process may use: cores, memory, open files; the limits of a container or a Slurm job
included.
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
ENOUGH_FILES = 1024


def threads(
    usable: int,
    cores: int,
    torch_threads: int | None,
    num_threads: int,
    environ: Mapping[str, str] = os.environ,
) -> Finding:
    """Threads of torch against the cores that this process may use.

    torch_threads: what torch chose, None when it cannot be asked. num_threads: run.num_threads, 0 =
    torch's choice.
    """
    omp = environ.get("OMP_NUM_THREADS")
    chosen = num_threads or torch_threads
    source = (
        f"run.num_threads={num_threads}"
        if num_threads
        else f"OMP_NUM_THREADS={omp}"
        if omp
        else "torch's choice"
    )
    found = f"{usable} of {cores} cores may be used; {f'{chosen} threads a rank ({source})' if chosen else 'torch cannot be asked'}"
    if chosen and chosen > usable:
        fix = f"run.num_threads={usable}, or OMP_NUM_THREADS={usable}"
        return warn("threads", f"{found}: more threads than cores wait for each other", fix)
    if chosen and chosen < usable / 2:
        fix = (
            f"run.num_threads={usable}"
            if num_threads or not omp
            else f"unset OMP_NUM_THREADS, or run.num_threads={usable}"
        )
        return warn(
            "threads", f"{found}: more than half of the cores are idle when there is one rank", fix
        )
    return ok("threads", found)


def memory(free: int | None, limit: int | None) -> Finding:
    """Memory that is free, in bytes; `limit` is what the cgroup leaves of it."""
    known = [size for size in (free, limit) if size is not None]
    if not known:
        return warn(
            "memory",
            "neither /proc/meminfo nor a cgroup tells how much is free",
            "none is needed where there is enough",
        )
    left = min(known)
    found = f"{byte_size(left)} free" + (
        f" ({byte_size(free)} on the machine)" if free is not None and left < free else ""
    )
    fix = (
        "end other programs" if left == free else "ask for more: --mem of Slurm, --memory of Docker"
    )
    if left < LEAST_MEMORY:
        return missing("memory", found, fix, needed=True)
    if left < ENOUGH_MEMORY:
        return warn("memory", found, f"{fix}; or lower train.batch_size")
    return ok("memory", found)


def open_files(soft: int | None = None, hard: int | None = None) -> Finding:
    """The limit of open files; data loaders and ranks take many."""
    if soft is None or hard is None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_count(soft)} (at most {_count(hard)})"
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        fix = f"ulimit -n {most}" if most >= ENOUGH_FILES else "ask the administrator for more"
        return warn("open files", found, fix)
    return ok("open files", found)


def usable_cores(quota: float | None) -> int:
    """Cores by affinity, less where a quota of the cgroup allows less."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return cores if quota is None else max(min(cores, math.floor(quota)), 1)


def free_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can be taken without swapping."""
    text = _read(meminfo) or ""
    return next(
        (
            int(line.split()[1]) * 1024
            for line in text.splitlines()
            if line.startswith("MemAvailable:")
        ),
        None,
    )


def cpu_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Cores that the strictest cgroup above this process allows, of version 2 or 1; None when none
    limits it.
    """
    quotas = []
    for folder in _folders("cpu", root, membership):
        quota, period = (_read(folder / "cpu.max") or "").split() or (None, None)
        quota = quota or _read(folder / "cpu.cfs_quota_us")
        period = period or _read(folder / "cpu.cfs_period_us")
        if quota and period and quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_left(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Bytes that the strictest cgroup above this process leaves; None when none limits it. File
    cache counts as free.
    """
    left = []
    for folder in _folders("memory", root, membership):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _read(folder / limit_file), _read(folder / used_file)
            if (
                limit and used and limit != "max" and int(limit) < 2**60
            ):  # version 1 writes "no limit" as almost 2^63
                left.append(max(int(limit) - int(used) + _file_cache(folder), 0))
    return min(left, default=None)


def _file_cache(folder: Path) -> int:
    rows = dict(
        line.split()
        for line in (_read(folder / "memory.stat") or "").splitlines()
        if line.count(" ") == 1
    )
    return int(rows.get("inactive_file", rows.get("total_inactive_file", 0)))


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """The cgroup of this process and those above it; inside a container only some of them can be
    seen.
    """
    for line in (_read(membership) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        here = top / path.lstrip("/")
        yield from (
            folder
            for folder in (here, *here.parents)
            if folder.is_relative_to(top) and folder.is_dir()
        )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
