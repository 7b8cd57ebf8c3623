"""Chunked against plain cross-entropy of an output head: peak memory growth and time, forward and
backward.

    python benchmarks/speed/cross_entropy.py --output benchmarks/results/cross_entropy.md

Every number comes from a fresh process. Growth is the high-water mark of the resident set after the
iterations, less the resident set before them, when hidden states and weight are already allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK_SIZES = (0, 128, 1024, 4096)
Z_LOSS_WEIGHTS = (0.0, 1e-4)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table; chunk_size None = plain, 0 = auto."""

    chunk_size: int | None
    z_loss_weight: float

    @property
    def label(self) -> str:
        if self.chunk_size is None:
            return "plain"
        return "chunked, auto" if self.chunk_size == 0 else f"chunked, {self.chunk_size} tokens"


def resident_bytes(*, peak: bool) -> int:
    """Resident set of this process, now or at its highest."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent held when it forked
        field = "VmHWM:" if peak else "VmRSS:"
        return next(
            int(line.split()[1]) << 10
            for line in status.read_text().splitlines()
            if line.startswith(field)
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Peak growth in bytes, seconds of each iteration, and the value, in this process."""
    import torch

    from forge.models.head import Head
    from forge.objectives.chunked_cross_entropy import auto_chunk_size, chunked_cross_entropy
    from forge.objectives.cross_entropy import cross_entropy

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    hidden = torch.randn(args.tokens, args.dim, requires_grad=True)
    weight = (0.02 * torch.randn(args.vocab, args.dim)).requires_grad_()
    targets = torch.randint(args.vocab, (args.tokens,))

    def plain() -> torch.Tensor:
        return cross_entropy(hidden @ weight.T, targets, z_loss_weight=case.z_loss_weight).total

    def chunked() -> torch.Tensor:
        return chunked_cross_entropy(
            hidden,
            Head(weight),
            targets,
            z_loss_weight=case.z_loss_weight,
            chunk_size=case.chunk_size or 0,
        ).total

    loss: Callable[[], torch.Tensor] = plain if case.chunk_size is None else chunked
    before, seconds, value = resident_bytes(peak=False), [], 0.0
    for _ in range(args.iterations):
        hidden.grad = weight.grad = None
        start = time.perf_counter()
        total = loss()
        total.backward()
        seconds.append(time.perf_counter() - start)
        value = total.item() / args.tokens
        del total
    return {
        "growth": resident_bytes(peak=True) - before,
        "seconds": seconds,
        "loss": value,
        "auto_chunk_size": auto_chunk_size(vocab=args.vocab, dim=args.dim),
        "torch": torch.__version__,
    }


def measure_in_fresh_process(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    options = [
        f"--{name}={getattr(args, name)}"
        for name in ("tokens", "vocab", "dim", "iterations", "threads")
    ]
    options += [
        f"--z-loss-weight={case.z_loss_weight}",
        f"--measure={-1 if case.chunk_size is None else case.chunk_size}",
    ]
    done = subprocess.run(
        [sys.executable, __file__, *options], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def table(args: argparse.Namespace) -> str:
    """Every case measured `args.rounds` times, interleaved, as a Markdown page."""
    from forge.training.callbacks.bench import processor

    cases = [
        Case(chunk_size=size, z_loss_weight=z)
        for z in args.z_loss_weights
        for size in (None, *args.chunk_sizes)
    ]
    results: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case in cases:
            results[case].append(measure_in_fresh_process(case, args))
    first = results[cases[0]][0]
    lines = [
        "# Chunked cross-entropy",
        "",
        (
            f"{args.tokens} tokens x {args.vocab} vocabulary, width {args.dim}, fp32,"
            f" {args.threads} threads. Peak: growth of the resident set, highest of {args.rounds}"
            f" fresh processes. Time: forward and backward, all but the first of {args.iterations}"
            " iterations over these processes, cases interleaved. Auto is"
            f" {first['auto_chunk_size']} tokens a chunk here."
        ),
        "",
        (
            "| loss | z-loss weight | peak MiB | of plain | fastest ms | of plain | median ms | of"
            " plain | value |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in cases:
        plain = Case(chunk_size=None, z_loss_weight=case.z_loss_weight)
        growth, base_growth = (max(run["growth"] for run in results[key]) for key in (case, plain))
        seconds, base_seconds = (
            [second for run in results[key] for second in run["seconds"][1:] or run["seconds"]]
            for key in (case, plain)
        )
        times = " | ".join(
            f"{1e3 * statistic(seconds):,.0f} | {statistic(seconds) / statistic(base_seconds):.2f}x"
            for statistic in (min, statistics.median)
        )
        lines.append(
            f"| {case.label} | {case.z_loss_weight:g} | {growth / 2**20:,.0f} |"
            f" {growth / base_growth:.1%} | {times} | {results[case][0]['loss']:.6f} |"
        )
    command = shlex.join(["python", *sys.argv])
    lines += [
        "",
        f"    {command}",
        "",
        (
            f"torch {first['torch']}, Python {platform.python_version()}, {platform.platform()},"
            f" {os.cpu_count()} x {processor()}"
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument(
        "--iterations", type=int, default=4, help="forward and backward passes a process"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes a case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chunk-sizes", type=int, nargs="+", default=CHUNK_SIZES, help="0 = auto")
    parser.add_argument("--z-loss-weights", type=float, nargs="+", default=Z_LOSS_WEIGHTS)
    parser.add_argument("--output", type=Path, help="also write the table here")
    parser.add_argument(
        "--measure",
        type=int,
        help="measure one chunk size (-1 = plain) in this process and print JSON",
    )
    parser.add_argument("--z-loss-weight", type=float, default=0.0, help="with --measure")
    args = parser.parse_args()
    if args.measure is not None:
        print(
            json.dumps(
                measure(
                    Case(
                        chunk_size=None if args.measure < 0 else args.measure,
                        z_loss_weight=args.z_loss_weight,
                    ),
                    args,
                )
            )
        )
        return
    page = table(args)
    print(page, end="")
    if args.output:
        args.output.write_text(page)


if __name__ == "__main__":
    main()
