"""Two replica groups by torchft: beside data parallelism, and with one killed and started again.

    python benchmarks/learning/replica_groups.py --runs DIR > benchmarks/results/torchft.md

Needs `pip install 'forge-lm[torchft]'`. The runs of the first table are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

COMMON = (
    "model.n_heads=2 model.n_layers=2 tokenizer=bytes "
    "train.batch_size=4 train.global_batch_size=8 precision=fp32 train.compile_model=false "
    "eval.enabled=false metrics.log_interval=1 run.device=cpu "
    "run.num_threads=1 data.num_workers=0 checkpoint.async_mode=disabled"
)
SMALL = "model.dim=32 train.seq_len=64"
SLOW = "model.dim=96 train.seq_len=256"
"""Steps long enough for a group to be back before the other is done."""


class Groups:
    """Starts replica groups as processes of their own, and reads their metrics."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address

    def start(self, name: str, replica: int | None, *options: str) -> subprocess.Popen[bytes]:
        """Start a run; replica: number of its group, None = without torchft."""
        words = [*COMMON.split(), f"run.dir={self.folder / name}", *options]
        if replica is not None:
            words += ["fault_tolerance=torchft", f"fault_tolerance.replica_id={replica}"]
            words += [f"fault_tolerance.lighthouse={self.address}"]
            words += ["fault_tolerance.process_group_timeout_ms=30000"]
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", "forge.train", *words]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The metrics of a run so far, a row for each step."""
        path = self.folder / name / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if "train/loss" in row]

    def wait_for(self, name: str, step: int, seconds: float = 240, **values: float) -> float:
        """Wait until a run has a row after a step with these values; returns seconds waited."""
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            wanted = {f"train/{key}": value for key, value in values.items()}
            if any(wanted.items() <= row.items() and row["step"] > step for row in self.rows(name)):
                return time.monotonic() - begin
            time.sleep(0.2)
        raise TimeoutError(f"{name} has no row after step {step} with {values}")

    def last_step(self, name: str) -> int:
        return max((row["step"] for row in self.rows(name)), default=0)

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """The weights of the last checkpoint."""
        from forge import load

        return dict(load(self.folder / name).model.state_dict())


def finish(*processes: subprocess.Popen[bytes], seconds: float = 240) -> None:
    """Wait for runs. Raises RuntimeError where one failed."""
    for process in processes:
        if code := process.wait(seconds):
            raise RuntimeError(f"{process.args} ended with {code}")


def difference(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of two models' weights."""
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def as_data_parallel(groups: Groups, steps: int = 20, ranks: int = 1) -> dict[str, float]:
    """Two groups beside one run of all their ranks: differences of losses and weights.

    ranks: of a group, with FSDP over them where there are several.
    """
    options = [f"train.max_steps={steps}", *SMALL.split(), f"train.batch_size={4 // ranks}"]
    parallel = "parallel=fsdp" if ranks > 1 else "parallel=ddp"
    first, second, whole = names = [f"{name}_{ranks}" for name in ("first", "second", "whole")]
    if any(groups.last_step(name) != steps for name in names):
        words = [f"run.num_processes={ranks}", *options, *([parallel] if ranks > 1 else [])]
        finish(*(groups.start(name, i, *words) for i, name in enumerate((first, second))))
        finish(groups.start(whole, None, f"run.num_processes={2 * ranks}", parallel, *options))
    losses = [[row["train/loss"] for row in groups.rows(name)] for name in (first, whole)]
    assert len(losses[0]) == len(losses[1]) == steps, losses
    return {
        "loss": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "weights": difference(groups.weights(first), groups.weights(whole)),
        "between groups": difference(groups.weights(first), groups.weights(second)),
    }


def killed_and_healed(groups: Groups, steps: int, after: int = 10) -> dict[str, float]:
    """Kill one of two groups with SIGKILL, and start it again."""
    options = f"train.max_steps={steps}", "run.num_processes=1", *SLOW.split()
    first, second = (groups.start(f"killed_{i}", i, *options) for i in range(2))
    groups.wait_for("killed_0", after, participants=2.0)
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    died = groups.last_step("killed_1")
    alone = groups.wait_for("killed_0", died, participants=1.0)
    second = groups.start("killed_1", 1, *options)
    back = groups.wait_for("killed_1", died, participants=2.0)
    joined = min(r["step"] for r in groups.rows("killed_1") if r["step"] > died)
    finish(first, second)
    rows = {row["step"]: row for row in groups.rows("killed_0")}
    begun = min(rows)  # a group that the other has begun without heals at its first step
    assert sorted(rows) == list(range(begun, steps + 1)), "a step is missing"
    return {
        "died after": died,
        "seconds alone": alone,
        "steps alone": sum(row["train/participants"] == 1.0 for row in rows.values()),
        "seconds back": back,
        "joined at": joined,
        "last participants": rows[steps]["train/participants"],
        "weights": difference(groups.weights("killed_0"), groups.weights("killed_1")),
    }


def lighthouse(min_replicas: int) -> Any:
    """A lighthouse in this process, that forgets a silent group after two seconds."""
    from torchft.coordination import LighthouseServer  # type: ignore[import-not-found]

    waits = {"join_timeout_ms": 5000, "heartbeat_timeout_ms": 2000}
    return LighthouseServer(bind="[::]:0", min_replicas=min_replicas, **waits)


def main() -> None:
    os.environ.setdefault("RUST_LOG", "error")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=240, help="of the run with a death in it")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    for path in options.runs.glob("killed_?"):
        shutil.rmtree(path)
    server = lighthouse(2)
    groups = Groups(options.runs, server.address())
    equal = {ranks: as_data_parallel(groups, ranks=ranks) for ranks in (1, 2)}
    server.shutdown()
    server = lighthouse(1)
    killed = killed_and_healed(Groups(options.runs, server.address()), options.steps)
    server.shutdown()
    versions = f"torch {torch.__version__}, torchft 0.2, Python {platform.python_version()}"
    print(f"`python benchmarks/learning/replica_groups.py`, {versions}, CPUs, gloo.\n")
    print("| two groups beside one run of all ranks, 20 steps in fp32 | 1 rank each | FSDP of 2 |")
    print("| --- | --- | --- |")
    names = {"loss": "largest difference of a step's loss"}
    names |= {"weights": "of a weight at the end", "between groups": "between the two groups"}
    for key, name in names.items():
        print(f"| {name} | {equal[1][key]:.3g} | {equal[2][key]:.3g} |")
    print()
    print("| one of two groups killed with SIGKILL and started again | |\n| --- | --- |")
    print(f"| last step of the killed group | {killed['died after']} |")
    print(f"| seconds until the other made a step alone | {killed['seconds alone']:.1f} |")
    print(f"| steps that the other made alone | {killed['steps alone']} |")
    print(
        f"| seconds from the start again to a step of two groups | {killed['seconds back']:.1f} |"
    )
    print(f"| first step of the killed group after its return | {killed['joined at']} |")
    print(f"| groups in the last step | {killed['last participants']:.0f} |")
    print(f"| largest difference of a weight between the two groups | {killed['weights']:.3g} |")


if __name__ == "__main__":
    main()
