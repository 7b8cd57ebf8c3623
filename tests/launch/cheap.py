"""Trials that cost nothing: an objective of two options, reached by a worker without torch, or by
an executor within a test.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
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


class Here:
    """An executor that runs in this process. rates: learning rates in the order in which they were
    run. stop_at: the trial that a signal stops.
    """

    def __init__(self, objective: Objective = valley, *, stop_at: int | None = None) -> None:
        self.objective, self.stop_at = objective, stop_at
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
                    sweep.directory.note("ended", number, code=143)
                    return sweep.finish([], 15)
                try:
                    finish(path, self.objective(vars(optimizer)))
                    sweep.directory.note("ended", number, code=0)
                except RuntimeError as error:
                    failed.append((entry.point, str(error)))
                    sweep.directory.note("ended", number, code=1)
            return sweep.finish(failed)


def work(run_dir: Path) -> None:
    """What a rank does."""
    options = yaml.safe_load((run_dir / "config.yaml").read_text())["optimizer"]
    time.sleep(float(os.environ.get("CHEAP_SECONDS", "0")))
    try:
        finish(run_dir, valley(options))
    except RuntimeError as error:
        sys.exit(str(error))


def sweep(argv: list[str]) -> int:
    """The verb `forge.train` with this module as the worker."""
    from forge import train
    from forge.launch.sweep import local

    local.Ranks = functools.partial(local.Ranks, module="cheap")  # type: ignore[misc,assignment]
    code = train.main(argv)
    assert "torch" not in sys.modules
    return code


if __name__ == "__main__":
    sys.exit(sweep(sys.argv[1:])) if "-m" in sys.argv else work(Path(sys.argv[1]))
