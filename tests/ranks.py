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

    Now and then a rank dies without a trace while gloo connects (seen twice, torch 2.13), before
    any rank has begun its work. Such a group is made anew, twice at most.
    """
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            failed = _run(world, work, Path(folder))
            met, traces = (len([*Path(folder).glob(f"{name}_*")]) for name in ("met", "trace"))
        if not failed or met or traces == world:
            break
    assert not failed, "\n".join(failed)


def _run(world: int, work: Callable[[int], None], folder: Path) -> list[str]:
    """What is said of the ranks that failed."""
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world, work, folder)) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    return [
        f"rank {rank} failed ({'it did not end' if code is None else f'exit code {code}'}):\n"
        f"{_trace(folder, rank)}"
        for rank, code in enumerate(codes)
        if code != 0
    ]


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
        (folder / f"met_{rank}").touch()
        work(rank)
        dist.barrier()
        code = 0
    except BaseException:
        (folder / f"trace_{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)  # what the test process had open is not ours to close


def _trace(folder: Path, rank: int) -> str:
    path = folder / f"trace_{rank}"
    return path.read_text() if path.exists() else "no trace"
