"""The points of a sweep compared: the options that they differ in, and which is best."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from forge.compose.grammar import read
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
    """The values of each key that a command varied, or that points of one arm differ in: a cell a
    point, '' where the key was not typed.
    """
    typed = [_typed(point) for point in points]
    varied = dict.fromkeys(key for point in points for key in point.varied)
    others = dict.fromkeys(key for own in typed for key in own if key not in varied)
    ignored = (*SHARED, "run")
    keys = [key for key in others if key.partition(".")[0] not in ignored]
    keys = [*varied, *(key for key in keys if _differs(key, points, typed))]
    return {key: [_cell(own[key]) if key in own else "" for own in typed] for key in keys}


def is_best_high(
    metric: str, named: Iterable[str] = (), sweepers: Iterable[Mapping[str, Any]] = ()
) -> bool:
    """Whether more of a metric is better: as a search was told, else as runs or objectives say.

    named: the metrics of which more is better in the results of the runs. sweepers: that section.
    """
    direction = next((known for one in sweepers if (known := one.get("direction"))), None)
    if direction:
        return direction == "maximize"
    return metric.rpartition("/")[2] in {*BEST_HIGH, *named} or is_higher_better(metric)


def best(sweep: Path, done: Sequence[Point]) -> tuple[Point, str, float] | None:
    """The best of the points that are done, with its objective and value, if all have the same."""
    found = [(point, *known) for point in done if (known := _objective(point.path))]
    finite = [one for one in found if math.isfinite(one[2])]
    names = {name for _, name, _ in found}
    if len(names) != 1 or not finite:
        return None
    sweepers = [_sweeper(point.path) for point in done] if (sweep / JOURNAL).is_file() else []
    results = (outcome.read_result(point.path) for point, *_ in found)
    named = [name for one in results if one for name in one.higher_is_better]
    choose = max if is_best_high(names.pop(), named, sweepers) else min
    return choose(finite, key=lambda one: one[2])


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
    values = {(point.arm, _number(own[key]) if key in own else None) for point, own in pairs}
    return len(values) > len({arm for arm, _ in values})


def _typed(point: Point) -> dict[str, str]:
    words = [translate(text).partition("=") for text in point.overrides]
    typed = {key.lstrip("+~"): "~" if key.startswith("~") else value for key, _, value in words}
    return {**typed, **point.varied}


@functools.cache
def _cell(text: str) -> str:
    """A value as it is shown: 0.001 for 1e-3, without quotes."""
    override = read(f"key={text}")
    if isinstance(override, Override) and not override.is_sweep_override():
        return shown(override.value())
    return text


def _number(text: str) -> float | str:
    try:
        return float(_cell(text))
    except ValueError:
        return _cell(text)
