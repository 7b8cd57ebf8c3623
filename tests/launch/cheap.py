"""Trials that cost nothing: an objective of two options, reached by an executor in the test."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge.launch.sweep.command import Command

BAD = "the loss was not finite in 10 steps in a row"
Objective = Callable[[dict[str, Any]], float | None]


def valley(options: dict[str, Any]) -> float:
    """Least at a learning rate of 1e-3 without weight decay; from 3e-3 to 5e-3 there is none."""
    if 3e-3 < options["lr"] < 5e-3:
        raise RuntimeError(BAD)
    return (math.log10(options["lr"]) + 3) ** 2 + options["weight_decay"]


def finish(run_dir: Path, value: float | None) -> None:
    """Leave a result as a worker does."""
    content = {"status": "finished", "reason": "end", "step": 1, "config": "config.yaml"}
    content |= {"metrics": {"eval/loss": value}}
    content |= {"objective": {"name": "eval/loss", "value": value}}
    (run_dir / "result.json").write_text(json.dumps(content))


class Killed(BaseException):
    """What leaves all files as they are, as a kill does."""


class Here:
    """An executor that runs in this process. rates: learning rates in the order in which they were
    run. stop_at: the trial that a signal stops, or that is killed.
    """

    def __init__(
        self, objective: Objective = valley, *, stop_at: int | None = None, kill: bool = False
    ) -> None:
        self.objective, self.stop_at, self.kill = objective, stop_at, kill
        self.rates: list[float] = []
        self.batches: list[int] = []

    def __call__(self, sweep: Command) -> int:
        failed = []
        with sweep.open():
            self.batches.append(len(sweep.due))
            for entry in sweep.due:
                optimizer = entry.planned.resolution.config.optimizer
                path, number = entry.point.path, entry.point.number
                path.mkdir(parents=True, exist_ok=True)
                (path / "config.yaml").touch()
                sweep.directory.note("started", number, pid=0, host="nowhere")
                self.rates.append(optimizer.lr)
                if self.stop_at == len(self.rates):
                    if self.kill:
                        raise Killed
                    sweep.directory.note("ended", number, code=143)
                    return sweep.finish([], 15)
                try:
                    finish(path, self.objective(vars(optimizer)))
                    sweep.directory.note("ended", number, code=0)
                except RuntimeError as error:
                    failed.append((entry.point, str(error)))
                    sweep.directory.note("ended", number, code=1)
            return sweep.finish(failed)
