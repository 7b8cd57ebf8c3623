"""What several runs at a time cost one another on a CPU, by their number of threads.

python benchmarks/speed/threads.py > benchmarks/results/threads.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from forge.doctor.limits import cpu_quota, usable_cores

CORES = usable_cores(cpu_quota())
OWN = ("OMP_NUM_THREADS",)
WAYS = {
    "all cores each, as OpenMP has it": {"OMP_NUM_THREADS": str(CORES)},
    "a share of the cores each, as forge has it": {},
}


def speeds(at_a_time: int, steps: int, environ: dict[str, str]) -> list[float]:
    """Tokens a second of each of so many runs of the default config, which begin together."""
    seeds = ",".join(str(seed) for seed in range(1, at_a_time + 1))
    kept = {name: value for name, value in os.environ.items() if name not in OWN}
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"seed={seeds}",
            f"launch.jobs={at_a_time}",
            f"train.max_steps={steps}",
            "scheduler.warmup_steps=1",
            f"sweep.root={folder}",
        ]
        command = [sys.executable, "-m", "forge.train", "-m", *words, "train=quick"]
        subprocess.run(command, check=True, env={**kept, **environ}, stdout=subprocess.DEVNULL)
        return [
            json.loads(file.read_text())["metrics"]["tokens_per_second"]
            for file in Path(folder).glob("*/points/*/result.json")
        ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {CORES} cores"
    print(
        f"`python {' '.join(sys.argv)}`, {versions}: the default run, tokens a second of all runs"
        " together;"
    )
    print(f"medians of {options.times}, with the lowest and the highest.\n")
    counts = sorted({1, 2, CORES})
    print(
        "| threads | "
        + " | ".join(f"{n} at a time" if n > 1 else "alone" for n in counts)
        + " |\n|"
        + " --- |" * (len(counts) + 1)
    )
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.times):  # in turn, so that what else the machine does falls on all
        for way, environ in WAYS.items():
            for n in counts:
                found.setdefault((way, n), []).append(sum(speeds(n, options.steps, environ)))
    for way in WAYS:
        cells = [found[way, n] for n in counts]
        print(
            f"| {way} | "
            + " | ".join(
                f"{statistics.median(c):,.0f} ({min(c):,.0f} to {max(c):,.0f})" for c in cells
            )
            + " |"
        )


if __name__ == "__main__":
    main()
