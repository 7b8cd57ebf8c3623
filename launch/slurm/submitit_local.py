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
    """A rank of the run in a directory; pickled by its name and these arguments."""

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
        worker = import_module("forge.worker")  # by name: launch may not import training
        code = worker.main([self.run_dir, *self.trust])
        if code:
            worker.leave(code)


def submit_locally(
    points: Sequence[tuple[Path, World]], *, name: str, folder: Path, trust: Sequence[str] = ()
) -> list[Any]:
    """Start the jobs of run directories, all at once; the jobs outlive this process."""
    import submitit

    saved = os.environ.get("PYTHONPATH", "")
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
        os.environ["PYTHONPATH"] = saved


def wait_locally(jobs: Sequence[Any], ended: Callable[[int], None] = lambda index: None) -> None:
    """Wait for the end of all jobs. ended: called with the index of each ended job."""
    running = set(range(len(jobs)))
    while running:
        for index in [index for index in running if jobs[index].done()]:
            running.remove(index)
            ended(index)
        time.sleep(POLL)
