"""Ranks on the CPU: processes forked from the test, joined by gloo."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 120


def on_ranks(world: int, work: Callable[[int], None]) -> None:
    """Run work(rank) on each of `world` ranks; fails with the trace of every rank that failed, or
    that did not end.

    Now and then gloo loses a connection while ranks meet (seen three times, torch 2.13). A group of
    which a rank has not met the others is made again, twice at most.
    """
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            failed = _run(world, work, Path(folder))
            met = len([*Path(folder).glob("met_*")])
        aborted = any(f"exit code {-signal.SIGABRT}" in one for one in failed)
        if not failed or (met == world and not aborted):
            break
    assert not failed, "\n".join(failed)


@contextmanager
def forking() -> Iterator[None]:
    """Around the start of processes that meet as ranks: what an earlier test has left of a group is
    neither joined again there nor, as garbage, ended, for which a process would wait for threads
    that it has not.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def in_fork() -> None:
    """The first thing that such a process does: a run that ends there unfreezes nothing."""
    gc.unfreeze = lambda: None


def _run(world: int, work: Callable[[int], None], folder: Path) -> list[str]:
    """What is said of the ranks that failed."""
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_rank, args=(rank, world, work, folder)) for rank in range(world)
    ]
    with forking():
        for process in ranks:
            process.start()
    end = time.monotonic() + SECONDS
    while any(process.exitcode is None for process in ranks) and time.monotonic() < end:
        time.sleep(0.01)
        died = [rank for rank, process in enumerate(ranks) if process.exitcode]
        if any(not (folder / f"met_{rank}").exists() for rank in died):
            break  # the others wait for it
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    return [
        f"rank {rank} failed ({'it did not end' if code is None else f'exit code {code}'}):\n"
        f"{_trace(folder, rank)}"
        for rank, code in enumerate(codes)
        if code != 0
    ]


def _rank(rank: int, world: int, work: Callable[[int], None], folder: Path) -> None:
    code = 1
    in_fork()
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
