"""The default run on several layouts: how far rounding takes them apart.

    python benchmarks/learning/default_layouts.py --runs DIR > benchmarks/results/default_layouts.md

Runs that DIR has finished already are not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

import torch

RUNS = {
    "single": [sys.executable, "-m", "forge.train"],
    "fsdp": [
        sys.executable,
        "-m",
        "forge.train",
        "parallel=fsdp",
        "run.num_processes=2",
        "run.num_threads=1",
    ],
    "torchrun": [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "forge.train",
        "run.num_threads=1",
    ],
    "tp2": [sys.executable, "-m", "forge.train", "parallel=tp2", "run.num_threads=1"],
}
ABOUT = """Training loss less that of the first line, by step, and the validation loss at the end.
Two ranks that shard (fsdp) or replicate (torchrun, where parallel=auto chooses ddp) get the same
bits as each other. One rank with two threads differs from them by rounding, since the products of
Muon are divided over its threads, and tp2 adds up parts of each product in another order: equal to
rounding at first (benchmarks/results/parity.md), which training then amplifies, as it does any
other difference in the last bit."""
STEPS = (10, 40, 100, 400, 1600)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    folder = parser.parse_args().runs
    for name, command in RUNS.items():
        print(f"{name} ...", file=sys.stderr)
        subprocess.run(
            [*command, f"run.dir={folder / name}", "metrics.enable_console=false"],
            check=True,
            stdout=sys.stderr,
        )
    losses = {name: rows(folder / name, "train/loss") for name in RUNS}
    validation = {name: list(rows(folder / name, "eval/loss").values())[-1] for name in RUNS}
    print("# The default run on other layouts\n")
    print(
        f"`python benchmarks/learning/default_layouts.py`, torch {torch.__version__},"
        f" {platform.machine()}, 2 cores.\n"
    )
    print(f"{ABOUT}\n")
    print(
        "| run | "
        + " | ".join(f"step {step}" for step in STEPS)
        + " | validation loss | less the first |"
    )
    print("| --- |" + " ---: |" * (len(STEPS) + 2))
    for name, command in RUNS.items():
        words = " ".join(["python", *command[1:]])
        apart = " | ".join(f"{losses[name][step] - losses['single'][step]:.0e}" for step in STEPS)
        print(
            f"| `{words}` | {apart} | {validation[name]:.5f} |"
            f" {validation[name] - validation['single']:.0e} |"
        )


def rows(run: Path, key: str) -> dict[int, float]:
    """Values of a metric by step."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[key] for row in found if key in row}


if __name__ == "__main__":
    main()
