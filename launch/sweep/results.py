"""The points of a sweep compared: the options that they differ in, and which is best."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.compose.grammar import read_override
from forge.compose.hydra_adapter import Override
from forge.config.hydra_names import translate
from forge.config.objectives.base import is_higher_better
from forge.config.problems import shown
from forge.launch.sweep.directory import Point
from forge.launch.sweep.expand import SHARED
from forge.rundir import outcome
from forge.rundir.files import read_json
from forge.rundir.saved_config import read_plain

BEST_HIGH = {"tokens_per_second", "mfu"}
JOURNAL = "optuna.journal"
DAMAGED = (OSError, ValueError, KeyError, TypeError)


def columns(points: Sequence[Point]) -> dict[str, list[str]]:
    """The values of each key varied by a command, or different between points of an arm: a cell a
    point, '' for a key not typed.
    """
    typed = [_typed(point) for point in points]
    varied = dict.fromkeys(key for point in points for key in point.varied)
    unvaried = dict.fromkeys(key for overrides in typed for key in overrides if key not in varied)
    ignored = (*SHARED, "run")
    keys = [key for key in unvaried if key.partition(".")[0] not in ignored]
    keys = [*varied, *(key for key in keys if _differs(key, points, typed))]
    return {
        key: [_cell(overrides[key]) if key in overrides else "" for overrides in typed]
        for key in keys
    }


def is_best_high(
    metric: str, named: Iterable[str] = (), sweepers: Iterable[Mapping[str, Any]] = ()
) -> bool:
    """Whether more of a metric is better: by the direction of a search, else by runs or objectives.

    named: metrics with more as better in the results of the runs. sweepers: section of each run.
    """
    direction = next((d for section in sweepers if (d := section.get("direction"))), None)
    if direction:
        return direction == "maximize"
    return metric.rpartition("/")[2] in {*BEST_HIGH, *named} or is_higher_better(metric)


def best_finished(sweep: Path, done: Sequence[Point]) -> tuple[Point, str, float] | None:
    """The best finished point with its objective and value; None without a common objective."""
    rows = [(point, *pair) for point in done if (pair := _objective(point.path))]
    finite = [row for row in rows if math.isfinite(row[2])]
    names = {name for _, name, _ in rows}
    if len(names) != 1 or not finite:
        return None
    sweepers = [_sweeper(point.path) for point in done] if (sweep / JOURNAL).is_file() else []
    results = (outcome.read_result(point.path) for point, *_ in rows)
    higher = [name for result in results if result for name in result.higher_is_better]
    choose = max if is_best_high(names.pop(), higher, sweepers) else min
    return choose(finite, key=lambda row: row[2])


def _objective(run_dir: Path) -> tuple[str, float] | None:
    with suppress(*DAMAGED):
        objective = read_json(run_dir / outcome.RESULT)["objective"]
        return str(objective["name"]), float(objective["value"])
    return None


def _sweeper(run_dir: Path) -> Mapping[str, Any]:
    with suppress(*DAMAGED):
        return dict(read_plain(run_dir)["sweeper"])
    return {}


def _differs(key: str, points: Sequence[Point], typed: Sequence[dict[str, str]]) -> bool:
    """Whether a key has two values in any arm."""
    pairs = zip(points, typed, strict=True)
    values = {
        (point.arm, _number(overrides[key]) if key in overrides else None)
        for point, overrides in pairs
    }
    return len(values) > len({arm for arm, _ in values})


def _typed(point: Point) -> dict[str, str]:
    words = [translate(text).partition("=") for text in point.overrides]
    typed = {key.lstrip("+~"): "~" if key.startswith("~") else value for key, _, value in words}
    return {**typed, **point.varied}


@functools.cache
def _cell(text: str) -> str:
    """A value for display: 0.001 for 1e-3, without quotes."""
    override = read_override(f"key={text}")
    if isinstance(override, Override) and not override.is_sweep_override():
        return shown(override.value())
    return text


def _number(text: str) -> float | str:
    try:
        return float(_cell(text))
    except ValueError:
        return _cell(text)
