"""Seconds that a sweep takes to be checked whole, before anything is started or written.

python benchmarks/waiting/preflight.py > benchmarks/results/preflight.md
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time

from hydra import __version__ as hydra_version
from omegaconf import __version__ as omegaconf_version

CODE = """
import sys, time
began = time.perf_counter()
from forge.config.problems import ConfigError
from forge.launch.sweep.preflight import Preflight
try:
    found = f"{len(Preflight(sys.argv[1:]).points()):,} points"
except ConfigError as error:
    refused = f"{len(error.wrong):,} of {len(error.combinations):,} points refused"
    found = f"{refused}, with {len(error.problems)} problems"
assert "torch" not in sys.modules
print(time.perf_counter() - began, found, sep="|")
"""
RATES = ",".join(f"{n}e-4" for n in range(1, 11))
SWEEPS = {
    "values": [f"optimizer.lr={RATES}", "seed=range({})"],
    "groups and values": [
        "model=tiny,small",
        "scheduler=cosine,linear,wsd,rex,constant",
        f"optimizer.lr={RATES}",
        "seed=range({})",
    ],
    "all wrong": [
        "model.n_heads=3,5",
        f"optimizer.lr={RATES}",
        "train.seq_len=99999",
        "seed=range({})",
    ],
}
TIMES = 3


def seconds(overrides: list[str]) -> tuple[float, float, str]:
    """Of the preflight alone, of the whole process, and what was found; medians."""
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CODE, *overrides], check=True, capture_output=True, text=True
        )
        own, _, found = done.stdout.strip().partition("|")
        taken.append((float(own), time.perf_counter() - began))
    return (
        statistics.median(own for own, _ in taken),
        statistics.median(whole for _, whole in taken),
        found,
    )


def main() -> None:
    versions = (
        f"hydra-core {hydra_version}, omegaconf {omegaconf_version}, Python"
        f" {platform.python_version()}, {os.cpu_count()} cores"
    )
    print(
        f"`python {' '.join(sys.argv)}`, {versions}; medians of {TIMES}, imports of Hydra and forge"
        " included.\n"
    )
    print("| what varies | found | seconds | with Python's start |\n| --- | --- | --- | --- |")
    for name, overrides in SWEEPS.items():
        for count in (100, 1000):
            combinations = 1
            for text in overrides[:-1]:
                combinations *= len(text.split(","))
            own, whole, found = seconds(
                [*overrides[:-1], overrides[-1].format(max(count // combinations, 1))]
            )
            print(f"| {name} | {found} | {own:.2f} | {whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
