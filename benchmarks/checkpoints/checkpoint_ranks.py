"""What it takes to save and to load a checkpoint, on one rank and on four of this machine.

    python benchmarks/checkpoints/checkpoint_ranks.py > benchmarks/results/checkpoint_ranks.md

Weights and AdamW state, sharded by rows as FSDP does, through the Checkpointer and the loader that
every run uses. Each save begins with what was written before it on the disk. The stall is what the
loop waits for: with asynchronous saves until it may compute, and until it may change weights.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import forge
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.parallel.ranks import Ranks
from forge.training.checkpoints import restore
from forge.training.checkpoints.checkpoint import Checkpointer

ROUNDS = 7
MATRICES, ROWS, WIDTH = 24, 2048, 1280
SAVE, COMPUTE, CHANGE, DURABLE = (
    "save",
    "stall before it computes",
    "stall before it changes weights",
    "until it is durable",
)
LOAD, LOAD_OTHER = "load", "load what the other number of ranks saved"


def state(world: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Matrices cut by rows over the ranks, and an optimizer that has made a step."""
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Module()
    for number in range(MATRICES):
        whole = torch.full((ROWS, WIDTH), float(number))
        model.register_parameter(
            f"matrix{number}",
            nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)),
        )
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def measure(rank: int, world: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each round, by what took them."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store_{world}", rank=rank, world_size=world
    )
    saver = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
    ranks = Ranks(rank=rank, size=world, host=saver, saver=saver)
    model, optimizer = state(world)
    config = forge.compose(["checkpoint.keep_last_n=0"]).validate().config
    tokenizer = cast(Tokenizer, SimpleNamespace(save=lambda path: path.mkdir()))
    seconds: dict[str, list[float]] = {}

    def note(name: str, begin: float) -> None:
        seconds.setdefault(name, []).append(time.perf_counter() - begin)

    for mode in ("disabled", "async"):
        config.checkpoint.thaw()
        config.checkpoint.async_mode = mode
        checkpointer = Checkpointer(folder / f"{mode}_{world}", config, tokenizer, "bench", ranks)
        for number in range(ROUNDS + 1):
            if rank == 0:
                os.sync()
            dist.barrier()
            begin = time.perf_counter()
            checkpointer.save(number, model=model, optimizer=optimizer, meta={}, extra={})
            if mode == "disabled":
                note(SAVE, begin)
                continue
            note(COMPUTE, begin)
            getattr(checkpointer, "wait_to_write", lambda: None)()
            note(CHANGE, begin)
            checkpointer.wait()
            dist.barrier()
            note(DURABLE, begin)
        checkpointer.close()
    for name, other in ((LOAD, world), (LOAD_OTHER, 1 if world > 1 else 4)):
        path = folder / f"disabled_{other}" / f"step_{ROUNDS}"
        for _ in range(ROUNDS + 1 if path.exists() else 0):
            dist.barrier()
            begin = time.perf_counter()
            restore.load_checkpoint(path, model=model, optimizer=optimizer, group=saver)
            note(name, begin)
    dist.barrier()
    return seconds


def on_ranks(world: int, folder: Path) -> dict[str, list[float]]:
    """What the first of them measured."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()

    def work(rank: int) -> None:
        found = measure(rank, world, folder)
        if rank == 0:
            results.put(found)
        dist.barrier()
        os._exit(0)

    processes = [context.Process(target=work, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    found = results.get()
    for process in processes:
        process.join()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(
        description="What saving and loading cost, on one rank and on four."
    )
    arguments.add_argument("--version", default="", help="of forge, for the title")
    options = arguments.parse_args()
    size = 3 * MATRICES * ROWS * WIDTH * 4 / 1e9
    print(f"## {options.version}\n" if options.version else "", end="")
    print(
        f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {os.cpu_count()} cores, a"
        f" virtual disk, {ROUNDS} times each.\n"
    )
    print(f"fp32 weights and AdamW state of {size:.2f} GB; seconds, the fastest and the median:\n")
    with tempfile.TemporaryDirectory() as folder:
        tables = {world: on_ranks(world, Path(folder)) for world in (1, 4)}
        tables[1] |= {LOAD_OTHER: on_ranks_load_only(Path(folder))}
    print("| what | one rank | four ranks |\n| --- | --- | --- |")
    for name in (SAVE, COMPUTE, CHANGE, DURABLE, LOAD, LOAD_OTHER):
        cells = [
            f"{min(later):.2f}, {statistics.median(later):.2f}"
            for later in (tables[world][name][1:] for world in (1, 4))
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def on_ranks_load_only(folder: Path) -> list[float]:
    """Seconds in which one process loads what four ranks saved."""
    model, optimizer = nn.Module(), None
    for number in range(MATRICES):
        model.register_parameter(f"matrix{number}", nn.Parameter(torch.zeros(ROWS, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters())
    seconds = []
    for _ in range(ROUNDS + 1):
        begin = time.perf_counter()
        restore.load_checkpoint(
            folder / "disabled_4" / f"step_{ROUNDS}", model=model, optimizer=optimizer
        )
        seconds.append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main()
