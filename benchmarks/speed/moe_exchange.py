"""A mixture of experts over two ranks: what the all-to-alls take of a pass."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from moe_layers import WARM_UP, Case, Work, experts, forward_backward, inputs, taken

from forge.config.model.decoder import Decoder
from forge.config.parallel import Parallel
from forge.models.dispatch import capacity, sort_assignments
from forge.models.moe import MoE
from forge.parallel.collectives import exchange, exchange_counts, exchange_rows
from forge.parallel.expert import spread_experts
from forge.parallel.mesh import make_mesh

RANKS = 2
CPU = torch.device("cpu")
EXCHANGED = ("grouped", "capacity 1.25")
COLLECTIVES = ("_c10d_functional::all_to_all_single", "_c10d_functional::wait_tensor")


def over_ranks(cases: Sequence[Case], rounds: int) -> list[str]:
    """A line for each case and kernel, as rank 0 of two gloo ranks finds it; each has a thread, and
    data of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=_rank, args=(rank, Path(folder), list(cases), rounds))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed; its trace is above")
        return json.loads(Path(folder, "lines").read_text())


def _rank(rank: int, folder: Path, cases: list[Case], rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    group = dist.group.WORLD
    assert group is not None
    mesh = make_mesh(Parallel(ep=RANKS, dp_shard=1), "cpu")
    lines = []
    for case in cases:
        x, y_grad = inputs(case, CPU, seed=1 + rank)
        for kernel in EXCHANGED:
            layer = experts(case, kernel, CPU)
            alone, sent = exchanges(layer, x, group)
            section = Decoder(dim=case.dim, moe=layer.section)
            spread_experts(layer, mesh, layer.section.tensors(section))
            run = partial(forward_backward, layer, x, y_grad)
            together(run, WARM_UP)
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]
            ) as profile:
                whole = statistics.median(together(run, rounds))
            inside = statistics.median(in_all_to_alls(profile, rounds))
            bare = statistics.median(together(alone, WARM_UP + rounds)[WARM_UP:])
            exchanged = " | ".join(
                f"{1e3 * found:,.2f} | {found / whole:.1%}" for found in (bare, inside)
            )
            lines.append(
                f"| {case} | {kernel} | {1e3 * whole:,.2f} | {sent / 1e6:,.2f} | {exchanged} |"
            )
    if rank == 0:
        (folder / "lines").write_text(json.dumps(lines))
    dist.destroy_process_group()


def together(work: Work, rounds: int) -> list[float]:
    """Seconds of so many passes, each of which all ranks begin at once."""
    seconds = []
    for _ in range(rounds):
        dist.barrier()
        seconds.append(taken(work, CPU))
    return seconds


def in_all_to_alls(profile: torch.profiler.profile, rounds: int) -> list[float]:
    """Seconds of each pass that went by in all-to-alls, waiting for the other rank included. All
    passes have as many of them.
    """
    events = profile.events()
    assert events is not None
    seconds = [
        event.cpu_time_total / 1e6 for event in events if event.name in COLLECTIVES
    ]  # in the order in which they began
    each = len(seconds) // rounds
    assert each > 0
    assert each * rounds == len(seconds)
    return [sum(seconds[first : first + each]) for first in range(0, len(seconds), each)]


def exchanges(layer: MoE, x: torch.Tensor, group: dist.ProcessGroup) -> tuple[Work, int]:
    """(the all-to-alls of a pass, forward and backward, and nothing else; bytes that this rank
    sends in it).
    """
    section, routed = layer.section, layer.router(x.detach().flatten(0, 1))
    if section.capacity_factor:
        rows = capacity(
            section.capacity_factor, x.shape[1], section.top_k, section.num_experts
        ) * len(x)
        there = x.new_ones(section.num_experts, rows, x.shape[2])
        back = exchange(there, 0, 1, group)

        def equal() -> None:
            for _ in range(2):
                exchange(there, 0, 1, group)
                exchange(back, 1, 0, group)

        return equal, 4 * there.nbytes // RANKS

    counts = sort_assignments(
        routed.experts, section.num_experts, len(x), per_sequence=False
    ).counts[0]
    come = exchange_counts(counts, group)
    send, receive = (each.unflatten(0, (RANKS, -1)).sum(1).tolist() for each in (counts, come))
    there, back = x.new_ones(sum(send), x.shape[2]), x.new_ones(sum(receive), x.shape[2])

    def uneven() -> None:
        exchange_counts(counts, group)
        for _ in range(2):
            exchange_rows(there, send, receive, group)
            exchange_rows(back, receive, send, group)

    other = 1 - dist.get_rank()
    return (
        uneven,
        2 * (send[other] + receive[other]) * there.shape[1] * there.itemsize
        + counts[: len(counts) // RANKS].nbytes,
    )
