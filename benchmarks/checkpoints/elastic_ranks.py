"""A run of four ranks of which one is killed continues with three, then with four again, with
nobody
typing a thing: the loss of each step and the samples beside a run left alone.

    python benchmarks/checkpoints/elastic_ranks.py > benchmarks/results/elastic_ranks.md

The runs train in float64: in fp32 AdamW makes the rounding of another layout grow with every step.
Exit code 1 when a loss differs by more than 1e-5, or any sample.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from kill_ranks import COMMON, ranks_of, wait_until

from forge.rundir import saved_config
from forge.rundir.checkpoints import Saved
from forge.rundir.files import last_rows, read_rows
from forge.rundir.outcome import attempts
from forge.rundir.wall_clock.goodput import Goodput, read_goodput

STEPS, KILLED_FROM, WITHIN = 150, 25, 1e-5
OWN = ("run.num_processes", "train.batch_size", "checkpoint.", "eval.", "metrics.enable")
OPTIONS = [
    *(word for word in COMMON if not word.startswith(OWN)),
    "run.num_processes=4",
    "train.batch_size=3",
    "train.global_batch_size=12",
    f"train.max_steps={STEPS}",
    "checkpoint.interval=10",
    "eval.enabled=false",
    "optimizer=adamw",
    "metrics.enable_console=false",
    "+callbacks.double._target_=kill_double.Double",
    "run.trust=[kill_double.]",
]
ELASTIC = ["run.max_restarts=3", "run.elastic=2:4", "run.elastic_retry_minutes=0.05"]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """starts: (ranks, first step) of each. losses: (step, of the run, of the one left alone)."""

    starts: list[tuple[int, int]]
    losses: list[tuple[int, float, float]]
    same_samples: bool
    spent: Goodput
    said: str

    @property
    def worst(self) -> float:
        return max(abs(loss - other) for _, loss, other in self.losses)

    def faults(self) -> list[str]:
        faults = []
        if [ranks for ranks, _ in self.starts] != [4, 3, 4]:
            faults.append(f"ranks of the starts: {self.starts}\n{self.said}")
        if [step for step, _, _ in self.losses] != list(range(1, STEPS + 1)):
            faults.append("steps are missing, or there twice")
        if not self.same_samples:
            faults.append("other samples")
        return faults if self.worst <= WITHIN else [*faults, f"losses differ by {self.worst:.1e}"]


def show(folder: Path, words: Sequence[str], env: dict[str, str]) -> Shown:
    """Make a run left alone, and one of which a rank is killed after a while."""
    command = [sys.executable, "-m", "forge.train", *OPTIONS, *words]
    paths = filter(None, [str(Path(__file__).resolve().parent), env.get("PYTHONPATH")])
    env = env | {"PYTHONPATH": os.pathsep.join(paths)}
    alone, run = folder / "alone", folder / "run"
    first = [*command, f"run.dir={alone}"]
    subprocess.run(first, check=True, timeout=900, env=env, capture_output=True)
    with (folder / "output").open("wb") as output:
        started = [*command, *ELASTIC, f"run.dir={run}"]
        process = subprocess.Popen(started, stdout=output, stderr=output, env=env)
    try:
        wait_until(lambda: _step(run) >= KILLED_FROM, process)
        os.kill(ranks_of(run)[2], signal.SIGKILL)
        code = process.wait(900)
    finally:
        process.kill()
    said = (folder / "output").read_text()
    assert code == 0, said
    rows, expected = (read_rows(path / "metrics.jsonl") for path in (run, alone))
    pairs = zip(rows, expected, strict=True)
    losses = [(row["step"], row["train/loss"], other["train/loss"]) for row, other in pairs]
    places = [Saved(path / "checkpoints" / f"step_{STEPS}").meta["loader"] for path in (run, alone)]
    tokens = [[row["tokens"] for row in each] for each in (rows, expected)]
    spent = read_goodput(run)
    assert spent is not None
    starts = [row for row in attempts(run) if row["event"] == "start"]
    configs = [saved_config.load_config(run / row["config"], trust=()) for row in starts]
    ranks = [config.run.num_processes or 0 for config in configs]
    return Shown(
        starts=[(size, row["step"]) for size, row in zip(ranks, starts, strict=True)],
        losses=losses,
        same_samples=places[0] == places[1] and tokens[0] == tokens[1],
        spent=spent,
        said=said,
    )


def _step(run: Path) -> int:
    return max((row["step"] for row in last_rows(run / "metrics.jsonl")), default=0)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Kill one of four ranks of an elastic run.")
    arguments.add_argument("overrides", nargs="*", help="of the run")
    options = arguments.parse_args()
    print(f"`python {os.path.relpath(sys.argv[0])}`, torch {torch.__version__}, ", end="")
    print(f"{os.cpu_count()} cores, float64: {STEPS} steps of 12 sequences over fsdp, with")
    print(f"`{' '.join(ELASTIC)}`.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        env = {**os.environ, "FORGE_CACHE": str(folder / "cache")}
        shown = show(folder, options.overrides, env)
    print("| start | ranks | from step |\n| --- | --- | --- |")
    for number, (ranks, step) in enumerate(shown.starts, start=1):
        print(f"| {number} | {ranks} | {step} |")
    print(f"\nLargest difference of a step's loss from the run left alone: {shown.worst:.1e}, of")
    print(f"losses from {shown.losses[0][2]:.3f} to {shown.losses[-1][2]:.3f}.")
    thirds = [shown.losses[first : first + STEPS // 3] for first in range(0, STEPS, STEPS // 3)]
    worst = [max(abs(loss - other) for _, loss, other in third) for third in thirds]
    print(f"By thirds of the run: {', '.join(f'{each:.1e}' for each in worst)}.")
    print(f"The same samples in each step: {'yes' if shown.same_samples else 'no'}.")
    print(f"Ledger: {shown.spent.words()}.\n\nWhat the command has said:\n")
    print(
        "\n".join(f"    {line}" for line in shown.said.replace(name, "RUNS").splitlines() if line)
    )
    print("\n".join(f"* WRONG: {line}" for line in shown.faults()))
    return 1 if shown.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
