"""One of four ranks is frozen by SIGSTOP: when, and in which words, the log and forge.status name
it and the collective in which the others wait.

    python benchmarks/checkpoints/frozen_rank.py > benchmarks/results/frozen_rank.md

Exit code 1 when it is named later than 60 seconds after the limit, or without its collective.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kill_ranks
import torch

from forge.rundir.files import last_rows
from forge.rundir.signs import SILENT

RANKS, FROZEN, FROM_STEP = 4, 2, 20
LATER = 60.0  # seconds after the limit
OPTIONS = [f"run.num_processes={RANKS}", "train.max_steps=1000000", "eval.enabled=false"]
COLLECTIVE = re.compile(
    r"ranks? [0-9, to]+ waits? in \w+ \d+ of .*; rank 2 .*(was last at|waits in \w+) \d+"
)


@dataclass(frozen=True, kw_only=True)
class Named:
    """When a frozen rank was named, in seconds after it was frozen, and the words."""

    log: tuple[float, str]
    status: tuple[float, str]
    stacks: dict[int, int]
    """Lines of the stacks by rank; a process that is stopped writes none."""
    went_on: bool
    """Whether further steps followed once the rank was let go."""

    def faults(self) -> list[str]:
        faults = []
        for place, (seconds, words) in (("log", self.log), ("forge.status", self.status)):
            if seconds > SILENT + LATER:
                faults.append(f"{place} names the rank after {seconds:.0f} s")
            if not COLLECTIVE.search(words):
                faults.append(f"{place} names no collective: {words}")
        if any(lines < 5 for rank, lines in self.stacks.items() if rank != FROZEN):
            faults.append(f"stacks of ranks are missing: {self.stacks}")
        return faults if self.went_on else [*faults, "the run does not continue"]


def show(folder: Path, words: Sequence[str], env: dict[str, str]) -> Named:
    """Start a run, freeze a rank, ask until it is named, let it go, and end the run."""
    run = folder / "run"
    command = [word for word in kill_ranks.COMMON if not word.startswith(("run.num_processes",))]
    command = [sys.executable, "-m", "forge.train", *command, *OPTIONS, *words, f"run.dir={run}"]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    try:
        kill_ranks.wait_until(lambda: _step(run) >= FROM_STEP and _says_collectives(run), process)
        pid = kill_ranks.ranks_of(run)[FROZEN]
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        log, status = _words(began, process, lambda: _logged(run)), None
        status = _words(began, process, lambda: _status(run, env))
        time.sleep(25)  # for the ranks to write their stacks, at their next signs of life
        stacks = {rank: _lines(run / "stacks" / f"rank_{rank}.txt") for rank in range(RANKS)}
        step = _step(run)
        os.kill(pid, signal.SIGCONT)
        kill_ranks.wait_until(lambda: _step(run) > step + 10, process)
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        went_on = code == 128 + signal.SIGTERM
    finally:
        for pid in kill_ranks.ranks_of(run).values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
    return Named(log=log, status=status, stacks=stacks, went_on=went_on)


def _words(
    began: float, process: subprocess.Popen[bytes], ask: Callable[[], str]
) -> tuple[float, str]:
    """The first answer, and how many seconds it took."""
    while not (words := ask()):
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() - began < SILENT + 5 * LATER, "nobody names the rank"
        time.sleep(1)
    return time.monotonic() - began, words


def _logged(run: Path) -> str:
    lines = (run / "logs" / "rank_0.log").read_text().splitlines()
    return next((line for line in lines if f"rank {FROZEN} (process" in line), "")


def _status(run: Path, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "forge.status", str(run), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    point = json.loads(told)[0]
    silent = [words for words in point["silent"] if f"rank {FROZEN} (process" in words]
    return "; ".join([*silent, point["waits_in"]]) if silent else ""


def _says_collectives(run: Path) -> bool:
    """Whether the last sign of life of the rank is of a time at which it trained already."""
    sign = run / "alive" / f"rank_{FROZEN}"
    return sign.exists() and bool(json.loads(sign.read_text() or "{}").get("collectives"))


def _step(run: Path) -> int:
    return max((row["step"] for row in last_rows(run / "metrics.jsonl")), default=0)


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def main() -> int:
    arguments = argparse.ArgumentParser(description="Freeze one of four ranks.")
    arguments.add_argument("overrides", nargs="*", help="of the run")
    options = arguments.parse_args()
    print(f"`python {os.path.relpath(sys.argv[0])}`, torch {torch.__version__}, ", end="")
    print(
        f"{os.cpu_count()} cores. The limit is {SILENT:.0f} s without a sign of life, which every"
    )
    print(f"rank gives each 20 s. Rank {FROZEN} of {RANKS} (fsdp) was frozen while they trained.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        env = {**os.environ, "FORGE_CACHE": str(folder / "cache")}
        named = show(folder, options.overrides, env)
    print("| where | named after | words |\n| --- | --- | --- |")
    for place, (seconds, words) in (("the log", named.log), ("`forge.status`", named.status)):
        words = words.replace(str(folder), "RUNS").replace("|", " ")
        print(f"| {place} | {seconds:.0f} s | {words} |")
    print(f"\nLines of stacks by rank in RUN/stacks: {named.stacks}.")
    print("A stopped process writes none. Once the rank was let go the run continued, and saved at")
    print("SIGTERM.")
    print("\n".join(f"* WRONG: {line}" for line in named.faults()))
    return 1 if named.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
