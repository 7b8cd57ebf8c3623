"""Seconds from the shell to the end of the first step, with the prepared data in the cache and
without it.

python benchmarks/waiting/startup.py > benchmarks/results/startup.md
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch


def first_step(cache: str) -> tuple[float, float]:
    """(seconds to the first logged step, seconds to the end of a run of one step without
    evaluation).
    """
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            "train.max_steps=1",
            "metrics.log_interval=1",
            "eval=off",
            f"run.dir={folder}/run",
        ]
        begin = time.time()
        subprocess.run(
            [sys.executable, "-m", "forge.train", *overrides],
            check=True,
            capture_output=True,
            env={**os.environ, "FORGE_CACHE": cache},
        )
        end = time.time()
        row = json.loads(Path(folder, "run", "performance.jsonl").read_text().splitlines()[0])
    return row["time"] - begin, end - begin


def verb(*arguments: str) -> float:
    """Median seconds of five calls of a torch-free verb."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main() -> None:
    print(f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {os.cpu_count()} cores.\n")
    print("| what | seconds |\n| --- | --- |")
    for name, arguments in {
        "`forge.train --cfg job`, median of 5": ("forge.train", "--cfg", "job"),
        "`forge.check`, median of 5": ("forge.check",),
        "`forge.check model=llama3_70b`, median of 5": ("forge.check", "model=llama3_70b"),
        "`forge.explain scheduler.decay_steps`, median of 5": (
            "forge.explain",
            "scheduler.decay_steps",
        ),
    }.items():
        print(f"| {name} | {verb(*arguments):.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        print(f"| shell to first step, nothing cached | {first_step(cache)[0]:.2f} |", flush=True)
        warm = [first_step(cache) for _ in range(5)]
    print(f"| shell to first step, median of 5 | {statistics.median(w[0] for w in warm):.2f} |")
    print(f"| a whole run of one step, median of 5 | {statistics.median(w[1] for w in warm):.2f} |")


if __name__ == "__main__":
    main()
