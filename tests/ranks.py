"""Ranks on the CPU: processes forked from the test, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 120


def on_ranks(world: int, work: Callable[[int], None]) -> None:
    """Run work(rank) on each of `world` ranks; fails with the trace of every rank that failed, or
    that did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        ranks = [
            context.Process(target=_rank, args=(rank, world, work, Path(folder)))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
        failed = [
            f"rank {rank} failed:\n{_trace(Path(folder), rank)}"
            for rank, process in enumerate(ranks)
            if process.exitcode != 0
        ]
        for process in ranks:
            process.kill()
        assert not failed, "\n".join(failed)


def _rank(rank: int, world: int, work: Callable[[int], None], folder: Path) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        store = f"file://{folder}/store"
        dist.init_process_group(
            "gloo",
            init_method=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=SECONDS / 2),
        )
        work(rank)
        dist.barrier()
        code = 0
    except BaseException:
        (folder / f"trace_{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)  # what the test process had open is not ours to close


def _trace(folder: Path, rank: int) -> str:
    path = folder / f"trace_{rank}"
    return path.read_text() if path.exists() else "no trace: it did not end, or died"
