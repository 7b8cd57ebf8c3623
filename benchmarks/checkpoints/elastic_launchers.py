"""An elastic run under torchrun and under Slurm: four ranks, then three, then four again, with
nobody typing a thing, beside a run left alone.

    python benchmarks/checkpoints/elastic_launchers.py > benchmarks/results/elastic_launchers.md

Under torchrun each node is a process of its own on this machine: one is killed with its rank, and
later another comes. Under Slurm there are six nodes on this machine, two of them out for repair: a
rank is killed, its node is excluded, and three are left; when a second is killed, the two are back.
Slurm needs its daemons and root (see tests/slurm). The runs train in float64, as in
elastic_ranks.py. Exit code 1 when a loss differs by more than 1e-5, or any sample.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch
from elastic_ranks import OPTIONS, WITHIN

from forge.config.numbers import time_span
from forge.launch.local.elastic import SHARES
from forge.launch.local.processes import free_port
from forge.rundir import saved_config
from forge.rundir.checkpoints import Saved
from forge.rundir.files import read_rows
from forge.rundir.outcome import attempts
from forge.rundir.wall_clock.goodput import Goodput, read_goodput

STEPS, BEFORE, BETWEEN = 120, 12, 14  # between kills more than checkpoint.interval
SIZES = (4, 3, 4)
PATIENCE = 900.0
OWN = ("run.num_processes", "train.max_steps", "run.trust")
TRUST = "run.trust=[kill_double.,pace_file.]"
ROUNDS = "last_call_timeout=3,keep_alive_interval=2"
WORTH = re.compile("changed: |resuming from|queueing|laid out|excluded|not started again")
TESTS = Path(__file__).resolve().parents[2] / "tests" / "slurm"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """starts: (ranks, first step) of each. worst: largest difference of a step's loss."""

    starts: list[tuple[int, int]]
    steps: int
    worst: float
    same_samples: bool
    spent: Goodput

    def faults(self, sizes: Sequence[int], steps: int) -> list[str]:
        """Deviations from the promise; a first round of ranks may have begun with fewer."""
        faults = []
        if [ranks for ranks, _ in self.starts][-len(sizes) :] != list(sizes):
            faults.append(f"ranks of the starts: {self.starts}")
        firsts = [step for _, step in self.starts][-len(sizes) :]
        if any(later <= first for first, later in pairwise(firsts)):
            faults.append(f"a start's steps were all made again by the next one: {self.starts}")
        if self.steps != steps:
            faults.append(f"{self.steps} steps instead of {steps}")
        if not self.same_samples:
            faults.append("other samples")
        return faults if self.worst <= WITHIN else [*faults, f"losses differ by {self.worst:.1e}"]


class Run:
    """A run directory that is written meanwhile, with the file that slows its steps down."""

    def __init__(self, path: Path) -> None:
        self.path, self.slow = path, path.with_name(f"{path.name}.slow")
        self.slow.touch()

    def words(self) -> list[str]:
        pace = ["+callbacks.pace._target_=pace_file.Pace", f"+callbacks.pace.file={self.slow}"]
        return [*pace, f"run.dir={self.path}"]

    def starts(self) -> list[tuple[int, int]]:
        rows = [row for row in attempts(self.path) if row["event"] == "start"]
        configs = [saved_config.load_config(self.path / row["config"], trust=()) for row in rows]
        sizes = [prod(config.parallel.degrees().values()) for config in configs]
        return [(size, row["step"]) for size, row in zip(sizes, rows, strict=True)]

    def wait_for(self, ranks: int, steps: int, alive: Callable[[], bool]) -> None:
        """Wait until so many ranks have made so many steps since their start."""
        deadline = time.monotonic() + PATIENCE
        while not self._has_made(ranks, steps):
            assert alive(), f"the run has ended; {self.path} was to go on with {ranks} ranks"
            assert time.monotonic() < deadline, f"{ranks} ranks have not come: {self.starts()}"
            time.sleep(0.2)

    def _has_made(self, ranks: int, steps: int) -> bool:
        file, starts = self.path / "metrics.jsonl", self.starts()
        if not starts or starts[-1][0] != ranks or not file.exists():
            return False
        rows = read_rows(file)
        return bool(rows) and rows[-1]["step"] >= starts[-1][1] + steps

    def compared(self, alone: Path) -> Comparison:
        rows, expected = (read_rows(path / "metrics.jsonl") for path in (self.path, alone))
        pairs = list(zip(rows, expected, strict=False))
        last = expected[-1]["step"]
        saved = [Saved(path / "checkpoints" / f"step_{last}") for path in (self.path, alone)]
        spent = read_goodput(self.path)
        assert spent is not None
        return Comparison(
            starts=self.starts(),
            steps=len(rows),
            worst=max(abs(row["train/loss"] - other["train/loss"]) for row, other in pairs),
            same_samples=saved[0].meta["loader"] == saved[1].meta["loader"]
            and all(row["tokens"] == other["tokens"] for row, other in pairs),
            spent=spent,
        )


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def under_torchrun(
    run: Run, words: Sequence[str], env: dict[str, str], sizes: Sequence[int] = SIZES
) -> str:
    """Make the run on as many nodes of torchrun as there are ranks; returns what was printed."""
    most, least, _ = sizes
    port, nodes = free_port(), []
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={least}:{most}"]
    command += ["--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d", "--rdzv-id=run"]
    command += [f"--rdzv-endpoint=localhost:{port}", f"--rdzv-conf={ROUNDS}", "-m", "forge.train"]
    command += [*words, *run.words(), f"run.elastic={least}:{most}"]
    env = env | {SHARES: "1"}

    def node() -> None:
        with run.path.with_name(f"{run.path.name}.node_{len(nodes)}").open("wb") as output:
            nodes.append(
                subprocess.Popen(
                    command, env=env, stdout=output, stderr=output, start_new_session=True
                )
            )

    def alive() -> bool:
        return nodes[0].poll() is None

    try:
        node()
        while not listens(port):  # the first node has the store of them all
            assert alive()
            time.sleep(0.2)
        for _ in range(most - 1):
            node()
        run.wait_for(most, BEFORE, alive)
        os.killpg(nodes[-1].pid, signal.SIGKILL)
        run.wait_for(least, BETWEEN, alive)
        node()
        run.wait_for(most, BETWEEN, alive)
        run.slow.unlink()
        code = nodes[0].wait(PATIENCE)
    finally:
        for process in nodes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    printed = run.path.with_name(f"{run.path.name}.node_0").read_text()
    assert code == 0, printed
    return printed


def under_slurm(run: Run, words: Sequence[str], env: dict[str, str]) -> str:
    """Make the run as a job on four of six nodes; returns what the job has printed."""
    sys.path.insert(0, str(TESTS))
    import one_box  # type: ignore[import-not-found]

    if why := one_box.missing():
        raise SystemExit(f"no Slurm: {why}")
    names = tuple(f"127.0.0.{number}" for number in range(1, 7))
    with tempfile.TemporaryDirectory(prefix="forge-slurm-") as folder:
        box = one_box.OneBox(Path(folder), names)
        try:
            box.start()
            return _as_job(run, words, env | {"SLURM_CONF": str(box.conf)}, box, names[4:])
        finally:
            box.stop()


def _as_job(
    run: Run, words: Sequence[str], env: dict[str, str], box: Any, repaired: Sequence[str]
) -> str:
    state = ["scontrol", "update", f"NodeName={','.join(repaired)}"]
    box.ask(*state, "State=DRAIN", "Reason=repair")
    job = ["launch=slurm", "launch.gpus_per_node=0", "launch.nodes=4", "launch.tasks_per_node=1"]
    job += ["launch.max_restarts=5", "launch.wait=true", "run.elastic=3:4", "run.num_processes=4"]
    command = [sys.executable, "-m", "forge.train", *words, *run.words(), *job]
    output = run.path.with_name(f"{run.path.name}.waiting")
    with output.open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def alive() -> bool:
        return process.poll() is None

    def kill(rank: int) -> None:
        sign = run.path / "alive" / f"rank_{rank}"
        os.kill(json.loads(sign.read_text())["process"], signal.SIGKILL)

    try:
        run.wait_for(4, BEFORE, alive)
        kill(3)
        run.wait_for(3, BETWEEN, alive)
        box.ask(*state, "State=RESUME")
        kill(2)
        run.wait_for(4, BETWEEN, alive)
        run.slow.unlink()
        code = process.wait(PATIENCE)
    finally:
        process.kill()
    from forge.launch.slurm import jobs

    log = jobs.job_log(run.path)
    printed = log.read_text() if log else output.read_text()
    assert code == 0, printed + output.read_text()
    return printed


def left_alone(path: Path, words: Sequence[str], env: dict[str, str], ranks: int) -> Path:
    """Make the same run on all ranks, undisturbed."""
    command = [sys.executable, "-m", "forge.train", *words, f"run.num_processes={ranks}"]
    command += [f"run.dir={path}"]
    subprocess.run(command, check=True, timeout=PATIENCE, env=env, capture_output=True)
    return path


def options(steps: int = STEPS) -> list[str]:
    return [*(w for w in OPTIONS if not w.startswith(OWN)), f"train.max_steps={steps}", TRUST]


def environment(folder: Path) -> dict[str, str]:
    paths = filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    cache = {"FORGE_CACHE": str(folder / "cache")}
    return {**os.environ, **cache, "PYTHONPATH": os.pathsep.join(paths)}


LAUNCHERS = {"torchrun": under_torchrun, "Slurm": under_slurm}


def main() -> int:
    arguments = argparse.ArgumentParser(description="Take ranks from an elastic run, and add them.")
    arguments.add_argument("--under", nargs="*", default=[*LAUNCHERS], choices=[*LAUNCHERS])
    launchers = arguments.parse_args().under
    print(f"`python {os.path.relpath(sys.argv[0])}`, torch {torch.__version__}, ", end="")
    print(f"{os.cpu_count()} cores, float64: {STEPS} steps of 12 sequences over fsdp, beside a run")
    print("of four ranks that was left alone.\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        env = environment(folder)
        alone = left_alone(folder / "alone", options(), env, SIZES[0])
        compared, printed = {}, {}
        for launcher in launchers:
            run = Run(folder / launcher.lower())
            text = LAUNCHERS[launcher](run, options(), env)
            compared[launcher] = run.compared(alone)
            printed[launcher] = text.replace(name, "RUNS")
    print("| under | ranks of each start (its first step) | samples of each step | ", end="")
    print("largest difference of a step's loss | restarts took | steps made again |")
    print("| --- | --- | --- | --- | --- | --- |")
    faults = []
    for launcher, comparison in compared.items():
        starts = ", ".join(f"{ranks} ({step})" for ranks, step in comparison.starts)
        same = "the same" if comparison.same_samples else "others"
        restarts = time_span(comparison.spent.seconds["restart"])
        numbers = f"{comparison.worst:.1e} | {restarts} | {comparison.spent.lost_steps}"
        print(f"| {launcher} | {starts} | {same} | {numbers} |")
        faults += [f"{launcher}: {text}" for text in comparison.faults(SIZES, STEPS)]
    for launcher, text in printed.items():
        lines = [line for line in text.splitlines() if WORTH.search(line)]
        print(f"\nOf what {launcher} has printed:\n")
        print("\n".join(f"    {line}" for line in lines))
    print("\n".join(f"* WRONG: {text}" for text in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
