"""A step of each optimizer beside torch's fused AdamW, what it keeps, and Muon's on several ranks.

    python benchmarks/speed/optim.py > benchmarks/results/optim.md

Updates alone, of random gradients, of model=small. All optimizers take a step in each round, one
after another; the ratio is the median over the rounds. Those of few bits take one step each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import forge
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.optim.build import build_optimizer
from forge.planning.memory import memory_of

TORCH = "torch.optim.AdamW(fused=True)"
CHOICES = (
    "optimizer=adamw",
    "optimizer=adamw optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16",
    "optimizer=adam_pax",
    "optimizer=schedule_free_adamw",
    "optimizer=lion",
    "optimizer=sgd optimizer.momentum=0.9",
    "optimizer=muon",
    "optimizer=normuon",
)
SLOW = (
    "optimizer=adamw_low_bit",
    "optimizer=adamw_low_bit optimizer.state_format=4bit",
    "optimizer=adamw_low_bit optimizer.state_format=fp8",
)
"""Whose updates are meant for a GPU: one step each."""
ON_RANKS = ("optimizer=adamw", "optimizer=muon", "optimizer=normuon")
ROUNDS, WARM_UP = 10, 2


def config_of(choice: str) -> Config:
    small = ["model=small", "run.device=cpu", "parallel.dp_shard=1", "train.global_batch_size=2"]
    return forge.compose([*small, *choice.split()]).validate().config


def with_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model


def kept(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state, counts of steps apart."""
    values = (v for state in optimizer.state.values() for v in state.values())
    return sum(_bytes(value) for value in values if value.numel() > 1)


def _bytes(value: Tensor) -> int:
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()  # type: ignore[attr-defined]
        return sum(_bytes(getattr(value, name)) for name in names)
    return value.nbytes


def times(
    steps: dict[str, Callable[[], Any]], rounds: int, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Milliseconds of each step in each round."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + warm_up):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            if number >= warm_up:
                found[name].append(1e3 * (time.perf_counter() - begin))
    return found


def on_one(rounds: int) -> None:
    torch.manual_seed(0)
    built = {choice: config_of(choice) for choice in (*CHOICES, *SLOW)}
    section: Any = built[CHOICES[0]].model
    models = {name: with_gradients(Decoder(section)) for name in (TORCH, *built)}
    of_torch = torch.optim.AdamW(models[TORCH].parameters(), lr=1e-3, fused=True)
    optimizers = {TORCH: of_torch}
    optimizers |= {c: build_optimizer(config, models[c]) for c, config in built.items()}
    fast = {name: each.step for name, each in optimizers.items() if name not in SLOW}
    found = times(fast, rounds)
    found |= times({name: optimizers[name].step for name in SLOW}, 1, warm_up=0)
    size = sum(p.numel() for p in models[TORCH].parameters())
    print(f"{size / 1e6:.1f}M parameters, {torch.get_num_threads()} threads, {rounds} rounds.\n")
    print("| optimizer | a step, median | of torch's | state | by forge.check | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, each in found.items():
        ratio = statistics.median(a / b for a, b in zip(each, found[TORCH], strict=False))
        row = f"| `{name}` | {statistics.median(each):,.0f} ms | {ratio:.1f} | "
        held = kept(optimizers[name])
        if name in built:
            said = memory_of(built[name]).state["optimizer state"]
            row += f"{held / 2**20:.1f} MiB | {said / 2**20:.1f} MiB | {said / held - 1:+.2%} |"
        else:
            row += f"{held / 2**20:.1f} MiB | | |"
        print(row)


def rank_of(rank: int, world: int, folder: Path, rounds: int, queue: Any) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store_{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    steps: dict[str, Callable[[], Any]] = {}
    for choice in ON_RANKS:
        config = config_of(choice)
        model: Any = Decoder(config.model)  # type: ignore[arg-type]
        if world > 1:
            for name, parameter in list(model.named_parameters()):
                layer, _, own = name.rpartition(".")
                values = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
                model.get_submodule(layer).register_parameter(own, nn.Parameter(values))
        optimizer = build_optimizer(config, with_gradients(model))

        def step(optimizer: torch.optim.Optimizer = optimizer) -> None:
            dist.barrier()
            optimizer.step()
            dist.barrier()

        steps[choice] = step
    found = times(steps, rounds)
    if rank == 0:
        queue.put({name: statistics.median(each) for name, each in found.items()})
    dist.destroy_process_group()


def on_ranks(worlds: list[int], rounds: int) -> None:
    context = multiprocessing.get_context("spawn")
    print(f"\nSharded by rows over gloo ranks of this machine, a thread each, {rounds} rounds.\n")
    print(f"| ranks | {' | '.join(f'`{choice}`' for choice in ON_RANKS)} |")
    print("| --- |" + " --- |" * len(ON_RANKS))
    for world in worlds:
        with tempfile.TemporaryDirectory() as folder:
            queue = context.Queue()
            ranks = [
                context.Process(target=rank_of, args=(rank, world, Path(folder), rounds, queue))
                for rank in range(world)
            ]
            for process in ranks:
                process.start()
            found = queue.get()
            for process in ranks:
                process.join()
        print(f"| {world} | {' | '.join(f'{found[choice]:.1f} ms' for choice in ON_RANKS)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    options = parser.parse_args()
    print(f"`python benchmarks/speed/optim.py`, torch {torch.__version__}.\n")
    on_one(options.rounds)
    on_ranks(options.ranks, options.rounds)


if __name__ == "__main__":
    main()
