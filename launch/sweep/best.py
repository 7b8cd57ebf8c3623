"""Which of several runs is best, and whether a metric is to be large."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from forge.config.eval import HIGHER_IS_BETTER
from forge.launch.optuna.study import FILE as JOURNAL
from forge.launch.sweep.directory import Point
from forge.rundir import directory
from forge.rundir.stored import newest, read_json, read_yaml

BEST_HIGH = {*HIGHER_IS_BETTER, "tokens_per_second", "mfu"}
MAXIMIZE = "maximize"


def is_higher_better(metric: str, sweepers: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Whether more is better: as a search for the metric was told, else as is known of our own.
    sweepers: that section of its runs.
    """
    told = next((direction for one in sweepers if (direction := one.get("direction"))), None)
    return told == MAXIMIZE if told else metric.rpartition("/")[2] in BEST_HIGH


def best(sweep: Path, done: Sequence[Point]) -> tuple[Point, str, float] | None:
    """The best of the points of a sweep that are done, its objective and the value; None where they
    have not one and the same.
    """
    found = [(point, *known) for point in done if (known := _objective(point.path))]
    names = {name for _, name, _ in found}
    finite = [one for one in found if math.isfinite(one[2])]
    if len(names) != 1 or not finite:
        return None
    sweepers = [_sweeper(point.path) for point in done] if (sweep / JOURNAL).is_file() else []
    choose = max if is_higher_better(names.pop(), sweepers) else min
    return choose(finite, key=lambda one: one[2])


def _objective(run_dir: Path) -> tuple[str, float] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        objective = read_json(run_dir / directory.RESULT)["objective"]
        return str(objective["name"]), float(objective["value"])
    return None


def _sweeper(run_dir: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return dict(read_yaml(newest(run_dir))["sweeper"])
    return {}
