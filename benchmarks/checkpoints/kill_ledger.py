"""Where the hours of a run of 300 steps went that was killed ten times: its ledger beside a clock,
the steps made again beside a count, and the bits of the end beside a run left alone.

    python benchmarks/checkpoints/kill_ledger.py > benchmarks/results/kill_ledger.md

Two ranks, each a node with a disk of its own: a folder, which a save goes to every 4 steps, with a
copy on the other node. SIGKILL ends a rank, the command that has started them, or a node: its rank
is killed and its folder deleted. Then the same command is typed again. Exit code 1 when a sum, a
count or a bit is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import kill_compare
import kill_ranks
import torch

from forge.rundir.wall_clock.goodput import Goodput, read_goodput

HERE = Path(__file__).resolve()
SHARED, LOCAL = 25, 4  # steps between two saves to shared storage, and to the nodes' disks
WITHIN = 0.01
MARKS = "helpers.step_marks.StepMarks"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run that was killed again and again.

    clock: seconds from the first command to the end of the last, by this process. begun, ended:
    steps, by a callback that counts in files. different: from the run left alone.
    """

    deaths: list[kill_ranks.Death]
    spent: Goodput
    clock: float
    steps: int
    begun: int
    ended: int
    same: list[str]
    different: list[str]

    @property
    def lost(self) -> tuple[int, int]:
        """The least and the most steps made again: a kill may have been inside of a step, or
        between its end and the ledger's word on it.
        """
        return self.begun - self.steps - (len(self.deaths) - 1), self.ended - self.steps

    def faults(self) -> list[str]:
        faults = list(self.different)
        if abs(self.spent.wall / self.clock - 1) > WITHIN:
            faults.append(f"the ledger has {self.spent.wall:.2f} s of {self.clock:.2f} s")
        if not self.lost[0] <= self.spent.lost_steps <= self.lost[1]:
            faults.append(f"the ledger has {self.spent.lost_steps} lost steps, not {self.lost}")
        return faults


def command(folder: Path, place: Path, words: Sequence[str], kills: int, steps: int) -> list[str]:
    """The command of a run, whose steps are counted in a folder of their own."""
    counted = counts(folder, place)
    counted.mkdir()
    more = [
        *(f"+callbacks.marks._target_={MARKS}", f"+callbacks.marks.folder={counted}"),
        "run.trust=[helpers.]",
        f"checkpoint.local_dir={disks(folder, place)}/node_%n",
        f"checkpoint.local_interval={LOCAL}",
        "checkpoint.local_ranks=1",
        f"checkpoint.interval={SHARED}",
    ]
    whole = kill_ranks.command_of(place, kills, [*words, *more])
    whole = [word for word in whole if word != "checkpoint.interval=5"]
    return [re.sub(r"^train.max_steps=.*", f"train.max_steps={steps}", word) for word in whole]


def counts(folder: Path, place: Path) -> Path:
    return folder / f"steps_of_{place.name}"


def disks(folder: Path, place: Path) -> Path:
    return folder / "disks" / place.name


def show(
    folder: Path, words: Sequence[str], *, kills: int, steps: int, seed: int, env: dict[str, str]
) -> Shown:
    """Make the run undisturbed, and killed. words: further overrides."""
    alone, run = folder / "alone", folder / "run"
    kill_ranks.STEPS_A_KILL = steps // (kills + 1)
    typed = command(folder, alone, words, kills, steps)
    subprocess.run(typed, check=True, env=env, timeout=900, capture_output=True)
    typed, began = command(folder, run, words, kills, steps), time.time()
    draw = random.Random(seed)
    deaths = list(kill_ranks.storm(typed, run, kills, draw, env, disks(folder, run)))
    clock, spent = time.time() - began, read_goodput(run)
    assert spent is not None
    counted = counts(folder, run)
    same, different = kill_compare.compare(alone, run, tidy=False)
    return Shown(
        deaths=deaths,
        spent=spent,
        clock=clock,
        steps=steps,
        begun=(counted / "begun").stat().st_size,
        ended=(counted / "ended").stat().st_size,
        same=same,
        different=different,
    )


def environment(folder: Path) -> dict[str, str]:
    """With a cache of its own, and this checkout's tests for the callback that counts."""
    tests = str(HERE.parents[2] / "tests")
    paths = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "FORGE_CACHE": str(folder / "cache"), "PYTHONPATH": paths}


def print_page(shown: Shown) -> None:
    print("| start | resumed from step | killed | at step |\n| --- | --- | --- | --- |")
    for number, death in enumerate(shown.deaths, start=1):
        source = death.went_on_from.removeprefix("step_")
        print(f"| {number} | {source} | {death.victim or 'the end'} | {death.step} |")
    spent = shown.spent
    print("\n| of the wall clock | seconds |\n| --- | --- |")
    for name, seconds in sorted(spent.seconds.items(), key=lambda pair: -pair[1]):
        print(f"| {name} | {seconds:.2f} |")
    print(f"| sum | {spent.wall:.2f} |\n| clock of this script | {shown.clock:.2f} |")
    print(f"\nSteps made again, by the ledger: {spent.lost_steps}; by a callback that counts in")
    print(f"files: {shown.begun} begun and {shown.ended} ended, which is {shown.lost[0]} to")
    print(f"{shown.lost[1]} made again, by whether a kill was inside of a step.")
    print("\nAgainst the undisturbed run:\n")
    print("\n".join(f"* the same: {line}" for line in shown.same))
    print("\n".join(f"* WRONG: {line}" for line in shown.faults()))


def main() -> int:
    arguments = argparse.ArgumentParser(description="Kill a run ten times, and read its ledger.")
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=2)
    arguments.add_argument("overrides", nargs="*", help="of the run")
    options = arguments.parse_intermixed_args()
    typed = " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    print(f"`{typed}`, torch {torch.__version__}, {os.cpu_count()} cores.\n", flush=True)
    print(f"Two nodes of one rank; {options.steps} steps; saves to the nodes' disks every {LOCAL}")
    print(
        f"steps and to shared storage every {SHARED}, both while training continues.\n", flush=True
    )
    with tempfile.TemporaryDirectory() as name:
        folder, numbers = Path(name).resolve(), vars(options)
        words, env = numbers.pop("overrides"), environment(folder)
        shown = show(folder, words, env=env, **numbers)
    print_page(shown)
    return 1 if shown.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
