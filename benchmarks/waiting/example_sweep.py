"""A sweep directory with all that a report reads of a real one, and invented curves: to look at a
report, and to test it, without training.

python benchmarks/waiting/example_sweep.py DIR --arms 20 --seeds 3
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from forge import cli
from forge.launch.sweep.directory import Point, SweepDirectory
from forge.resolve.resolve import Resolution
from forge.rundir import files, outcome, saved_config

SMALL = [
    "model=tiny",
    "run.device=cpu",
    "train.batch_size=8",
    "train.seq_len=256",
    "eval.enabled=true",
    "eval.interval=100",
    "metrics.log_interval=10",
]
STEPS, SECONDS = 800, 0.05


class Example:
    """Adds points to a sweep directory. gains: by how much each arm is better than 4.2 nats in the
    end, by its overrides.
    """

    def __init__(self, path: Path, *, steps: int = STEPS, overrides: Sequence[str] = SMALL) -> None:
        self.sweep, self.steps = SweepDirectory(path), steps
        self.common = [*overrides, f"train.max_steps={steps}", "scheduler.warmup_steps=4"]
        self.sweep.begin(self.common, argv=["forge.train", "-m"])
        self._resolved: dict[tuple[str, ...], Resolution] = {}

    def done(
        self, overrides: Sequence[str], *, seed: int, gain: float = 0.0, arm: str | None = None
    ) -> Point:
        """A run that has finished."""
        point = self._made(overrides, seed, arm)
        rows = self.log(point, seed=seed, gain=gain, until=self.steps)
        finish(point.path, rows, step=self.steps)
        self.sweep.note("ended", point.number, code=0)
        return point

    def failed(
        self, overrides: Sequence[str], *, seed: int, at: int, why: str, arm: str | None = None
    ) -> Point:
        """A run that has failed after some steps."""
        point = self._made(overrides, seed, arm)
        self.log(point, seed=seed, gain=0.0, until=at)
        failure = {"kind": "RuntimeError", "message": why, "said": why, "code": 1}
        outcome.record_failure(point.path, rank=0, **failure)
        outcome.record_end(point.path, status="failed", reason=why, step=at)
        self.sweep.note("ended", point.number, code=1)
        return point

    def partial(
        self,
        overrides: Sequence[str],
        *,
        seed: int,
        at: int,
        gain: float = 0.0,
        arm: str | None = None,
    ) -> Point:
        """A run that is under way, or was stopped: it is running while somebody holds its lock."""
        point = self._made(overrides, seed, arm)
        self.log(point, seed=seed, gain=gain, until=at)
        return point

    def waiting(self, overrides: Sequence[str], *, seed: int, arm: str | None = None) -> Point:
        """A point that was added, and whose run nobody has made yet."""
        return self._added(overrides, seed, arm)

    def prepared(self, overrides: Sequence[str], *, seed: int) -> Point:
        """A point whose run directory is made, and that nobody has started yet."""
        return self._made(overrides, seed, None)

    def log(self, point: Point, *, seed: int, gain: float, until: int) -> dict[str, float]:
        """Write the rows up to a step; the last value of each metric. A seed moves all arms by much
        the same, as it does in truth.
        """
        luck, noise = np.random.default_rng(seed), np.random.default_rng([seed, point.number])
        offset = 0.03 * luck.normal() + 0.004 * noise.normal()
        rate = SECONDS * (1 + 0.05 * noise.normal())
        last: dict[str, float] = {}
        files.append_row(
            point.path / "attempts.jsonl",
            {"event": "start", "config": "config.yaml", "step": 0, "from": "nothing"},
        )
        with (
            (point.path / "metrics.jsonl").open("a") as metrics,
            (point.path / "performance.jsonl").open("a") as performance,
        ):
            for step in range(10, until + 1, 10):
                loss = (
                    4.2 - gain * step / self.steps + offset + 4.2 * (1 + 12 * step / STEPS) ** -1.6
                )
                training = {
                    "train/loss": loss + 0.05 * noise.normal(),
                    "lr": 1e-3,
                    "tokens": 2048 * step,
                }
                rows = [{"step": step, **training}]
                if step % 100 == 0 or step == until:
                    rows.append(
                        {"step": step, "eval/loss": loss, "eval/token_accuracy": 1 / (1 + loss)}
                    )
                for row in rows:
                    metrics.write(json.dumps(row) + "\n")
                    last |= row
                performance.write(
                    json.dumps(
                        {
                            "step": step,
                            "time": 1.7e9 + rate * step,
                            "step_seconds": rate,
                            "tokens_per_second": 2048 / rate,
                        }
                    )
                    + "\n"
                )
        return {name: value for name, value in last.items() if name != "step"}

    def _made(self, overrides: Sequence[str], seed: int, arm: str | None) -> Point:
        point = self._added(overrides, seed, arm)
        key = (*self.common, *overrides)
        if key not in self._resolved:
            self._resolved[key] = cli.resolved([*self.common, *overrides])[1]
        resolution = self._resolved[key]
        config = replace(
            resolution.config, seed=seed, run=replace(resolution.config.run, dir=str(point.path))
        )
        config.freeze()
        point.path.mkdir(parents=True)
        saved_config.save_config(config, point.path / "config.yaml")
        return point

    def _added(self, overrides: Sequence[str], seed: int, arm: str | None) -> Point:
        words = [*overrides, f"seed={seed}"]
        digest = hashlib.blake2b(
            " ".join([*self.common, *words]).encode(), digest_size=16
        ).hexdigest()
        varied = {} if arm else dict(text.split("=", 1) for text in overrides)
        return self.sweep.add(
            hash=digest,
            overrides=[*self.common, *words],
            varied={**varied, "seed": str(seed)},
            arm=arm,
        )


def finish(
    run_dir: Path, metrics: Mapping[str, Any], *, step: int, objective: str = "eval/loss"
) -> None:
    """Write how a run ended."""
    value = {"name": objective, "value": metrics.get(objective)}
    content = {
        "status": "finished",
        "reason": "end",
        "step": step,
        "config": "config.yaml",
        "objective": value,
        "metrics": dict(metrics),
    }
    files.write_json(run_dir / "result.json", content)
    outcome.record_end(run_dir, status="finished", reason="end", step=step)


def grid(path: Path, *, arms: int, seeds: int, steps: int = STEPS) -> SweepDirectory:
    """A sweep over the learning rate and the weight decay; of its last arm one run has failed and
    one was stopped.
    """
    example = Example(path, steps=steps)
    for i in range(arms):
        overrides = [
            f"optimizer.lr={1e-3 * (1 + i % 5):g}",
            f"optimizer.weight_decay={0.05 * (1 + i // 5):g}",
        ]
        for seed in range(1, seeds + 1):
            if i == arms - 1 and seed == seeds:
                example.failed(
                    overrides,
                    seed=seed,
                    at=steps // 4,
                    why="the loss was not finite in 10 steps in a row",
                )
            elif i == arms - 1 and seed == seeds - 1:
                example.partial(overrides, seed=seed, at=steps // 2)
            else:
                example.done(
                    overrides, seed=seed, gain=0.02 * (3 - abs(3 - i % 5)) - 0.01 * (i // 5)
                )
    return example.sweep


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--arms", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(grid(options.path, arms=options.arms, seeds=options.seeds).path)


if __name__ == "__main__":
    main()
