"""Runs as jobs of submitit on this machine: what a cluster does, without one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from forge.launch.local import threads
from forge.launch.local.processes import free_port, search_path
from forge.planning.world import World

MINUTES = 60 * 24 * 365  # submitit wants a limit
POLL = 0.2


class Rank:
    """One rank of the run in a directory; pickled by its name and these arguments."""

    def __init__(self, run_dir: Path, port: int, trust: Sequence[str] = ()) -> None:
        self.run_dir, self.port, self.trust = str(run_dir), port, tuple(trust)

    def __call__(self) -> None:
        rank, ranks = os.environ["SUBMITIT_LOCAL_GLOBALID"], os.environ["SUBMITIT_LOCAL_NTASKS"]
        os.environ.update(
            threads.shared(int(ranks)),
            RANK=rank,
            LOCAL_RANK=rank,
            WORLD_SIZE=ranks,
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(self.port),
        )
        worker = import_module("forge.worker")  # training stands above launch
        code = worker.main([self.run_dir, *self.trust])
        if code:
            worker.leave(code)


def submit(
    points: Sequence[tuple[Path, World]], *, name: str, folder: Path, trust: Sequence[str] = ()
) -> list[Any]:
    """Start the jobs of run directories, all at once; they outlive this process."""
    import submitit

    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = search_path()
    try:
        jobs = []
        for run_dir, world in points:
            executor = submitit.AutoExecutor(folder=folder.resolve(), cluster="local")
            executor.update_parameters(
                name=name,
                tasks_per_node=world.size,
                gpus_per_node=world.size if world.device == "cuda" else 0,
                timeout_min=MINUTES,
                stderr_to_stdout=True,
            )
            jobs.append(executor.submit(Rank(run_dir, free_port(), trust)))
        return jobs
    finally:
        os.environ["PYTHONPATH"] = before


def wait(jobs: Sequence[Any], ended: Callable[[int], None] = lambda place: None) -> None:
    """Until all have ended. ended: called with the place of each."""
    left = set(range(len(jobs)))
    while left:
        for place in [place for place in left if jobs[place].done()]:
            left.remove(place)
            ended(place)
        time.sleep(POLL)
