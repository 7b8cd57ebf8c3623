"""All checks, in the order in which they are shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from forge.config.numbers import GIB
from forge.doctor import accelerator, limits, places, software
from forge.doctor.finding import Finding
from forge.doctor.places import Place
from forge.doctor.slurm import slurm


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a config says of the machine: where it writes, its loader processes and their bytes in
    shared memory, its threads.
    """

    runs: Path
    runs_option: str = "run.root=DIR"
    cache: Path
    num_workers: int = 4
    loader_bytes: int = 0
    num_threads: int = 0


def examine(plan: Plan) -> list[Finding]:
    """Every finding about this machine. Leaves nothing behind."""
    report = accelerator.probe()
    gpus = len(report.get("cuda", {}).get("devices", ()))
    found = [software.python(), *accelerator.findings(report), *software.packages(), slurm()]
    runs, trial = places.examine(
        Place(name="run.root", path=plan.runs, option=plan.runs_option, enough=10 * GIB)
    )
    cache = Place(
        name="cache",
        path=plan.cache,
        option="data.cache_dir=DIR or FORGE_CACHE=DIR",
        enough=5 * GIB,
    )
    scratch = Place(name="temporary", path=_scratch(), option="TMPDIR=DIR", enough=GIB)
    others = "HOME=DIR; torch, Triton and W&B keep caches there"
    home = Place(
        name="home", path=Path(os.path.expanduser("~")), option=others, enough=GIB, needed=False
    )
    found += [
        runs,
        *(places.examine(place)[0] for place in (cache, scratch, home)),
        places.locks(trial),
    ]
    shm = Path("/dev/shm")
    found.append(
        places.shared_memory(
            plan.loader_bytes, plan.num_workers, gpus, places.room(shm)[0] if shm.is_dir() else None
        )
    )
    usable, threads = (
        limits.usable_cores(limits.cpu_quota()),
        report.get("torch", {}).get("threads"),
    )
    found.append(limits.threads(usable, os.cpu_count() or 1, threads, plan.num_threads))
    found += [
        limits.memory(limits.free_memory(), limits.memory_left()),
        limits.open_files(),
        places.clock(trial),
    ]
    return [*found, software.git(), software.compiler(), software.wandb()]


def _scratch() -> Path:
    """TMPDIR as it is set: Python itself passes over one that cannot be written, other programs do
    not.
    """
    return Path(os.environ.get("TMPDIR") or "/tmp")
