"""Seconds that `forge.report` and `forge.status` take on sweeps of 1,000 points with invented
curves, and the size of what they write.

python benchmarks/waiting/report_scale.py > benchmarks/results/report_scale.md
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from example_sweep import Example

from forge import cli
from forge.launch.sweep.directory import Point

SWEEPS = {"arms": (50, 20), "search": (1000, 1)}
LOGS, EVERY, TIMES = 500, 10, 3


class Many(Example):
    """An example whose points share one composition, in which only learning rate and weight decay
    are replaced.
    """

    def _made(self, overrides: Sequence[str], seed: int, arm: str | None) -> Point:
        shared, key = tuple(self.common), (*self.common, *overrides)
        if shared not in self._resolved:
            self._resolved[shared] = cli.resolved([*self.common])[1]
        if key not in self._resolved:
            typed = dict(text.removeprefix("optimizer.").split("=") for text in overrides)
            values = {name: float(value) for name, value in typed.items()}
            config = self._resolved[shared].config
            changed = replace(config, optimizer=replace(config.optimizer, **values))
            self._resolved[key] = replace(self._resolved[shared], config=changed)
        return super()._made(overrides, seed, arm)


def make(path: Path, *, arms: int, seeds: int, logs: int = LOGS) -> Path:
    """A sweep of arms x seeds points, all done, with that many logs each."""
    example, random = Many(path, steps=logs * EVERY), np.random.default_rng(0)
    for _ in range(arms):
        rate, decay = 10 ** random.uniform(-4, -2), random.uniform(0, 0.3)
        gain = 0.3 - 0.2 * (np.log10(rate) + 2.6) ** 2 - decay / 10
        for seed in range(1, seeds + 1):
            example.done(
                [f"optimizer.lr={rate:.4g}", f"optimizer.weight_decay={decay:.3g}"],
                seed=seed,
                gain=gain,
            )
    return example.sweep.path


def measured(verb: str, path: Path) -> tuple[str, int]:
    """Seconds of a verb and of the CPU, medians, and the lines that it prints."""
    taken, lines = [], 0
    for _ in range(TIMES):
        began, used = time.perf_counter(), cpu_seconds()
        done = subprocess.run(
            [sys.executable, "-m", f"forge.{verb}", str(path)],
            check=True,
            capture_output=True,
            text=True,
        )
        taken.append((time.perf_counter() - began, cpu_seconds() - used))
        lines = len(done.stdout.splitlines())
    wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
    return f"{wall:.1f} ({cpu:.1f})", lines


def cpu_seconds() -> float:
    """Of the processes that have been started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="leave the sweeps here; those that are there are taken as they are",
    )
    options = parser.parse_args()
    machine = (
        f"Python {platform.python_version()}, {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f}"
        " at the start"
    )
    print(f"`python {' '.join(sys.argv)}`, {machine}; 1,000 points with {LOGS} logs each. ", end="")
    print(f"Medians of {TIMES}, in brackets of CPU time, which other processes disturb less.\n")
    heads = (
        "sweep",
        "report, s",
        "its lines",
        "index.html, MB",
        "report.md, MB",
        "arms.csv, MB",
        "runs.csv, MB",
        "status, s",
    )
    print(f"| {' | '.join(heads)} |\n| {' | '.join(['---'] * len(heads))} |")
    with tempfile.TemporaryDirectory() as scratch:
        for name, (arms, seeds) in SWEEPS.items():
            path = (options.keep or Path(scratch)) / name
            if not path.exists():
                make(path, arms=arms, seeds=seeds)
            (report, lines), (status, _) = (measured(verb, path) for verb in ("report", "status"))
            sizes = [
                size(path / "report" / file)
                for file in ("index.html", "report.md", "arms.csv", "runs.csv")
            ]
            seeds_said = "1 seed" if seeds == 1 else f"{seeds} seeds"
            print(
                f"| {arms:,} arms of {seeds_said} | {report} | {lines:,} | {' | '.join(sizes)} |"
                f" {status} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
