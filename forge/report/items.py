"""Evaluations compared item by item: two runs, or the arms of a sweep over seeds and items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forge.report.comparison import Report, Row
from forge.report.table import Table
from forge.rundir.files import read_rows
from forge.statistics.interval import Interval
from forge.statistics.items import Discordant, mcnemar, mean, paired
from forge.statistics.two_level import two_level

EVALUATIONS, CACHE = "eval", "cache"
BOTH_LEVELS = (
    "Of runs of the same seed and of the same items; the interval is over seeds and items at once, "
    "both as random (docs/reports.md). With one seed it is over the items alone."
)
Rows = dict[str, dict[str, Any]]
"""The lines of an evaluation, by the item's id."""


@dataclass(frozen=True, kw_only=True)
class ItemPair:
    """A metric of two runs over their common items. left_out: items that only one of them has.

    discordant: of a metric that is 0 or 1, the items that one run alone has right.
    """

    task: str
    metric: str
    first: float
    second: float
    difference: Interval
    discordant: Discordant | None
    left_out: int


@dataclass(frozen=True, kw_only=True)
class ArmItems:
    """A metric of an arm minus the baseline's, over the common seeds and items."""

    arm: str
    task: str
    metric: str
    seeds: int
    items: int
    difference: Interval


def evaluated(run_dir: Path) -> dict[str, Path]:
    """The newest evaluation of every task: a file of a line an item."""
    newest: dict[str, Path] = {}
    files = (run_dir / EVALUATIONS).glob("*/*.jsonl")
    for path in sorted((p for p in files if p.stem.isdigit()), key=lambda p: int(p.stem)):
        if path.parent.name != CACHE:
            newest[path.parent.name] = path
    return dict(sorted(newest.items()))


def pairs(first: Path, second: Path) -> list[ItemPair]:
    """Every metric of the tasks that both runs were evaluated on."""
    a, b = evaluated(first), evaluated(second)
    return [
        pair for task in a if task in b for pair in _pairs(task, _read(a[task]), _read(b[task]))
    ]


def _pairs(task: str, a: Rows, b: Rows) -> list[ItemPair]:
    ids = [name for name in a if name in b]
    result = []
    for metric in _metrics([a, b], ids):
        values = [np.array([_value(rows[i], metric) for i in ids]) for rows in (a, b)]
        weights = [[_weight(rows[i], metric) for i in ids] for rows in (a, b)]
        binary = all(set(side) <= {0.0, 1.0} for side in values)
        first, second = (mean(v, weights=w).value for v, w in zip(values, weights, strict=True))
        difference = paired(
            *values, weights=weights[0], other_weights=weights[1], clusters=_clusters(a, ids)
        )
        pair = ItemPair(
            task=task,
            metric=metric,
            first=first,
            second=second,
            difference=difference,
            discordant=mcnemar(*(list(side > 0) for side in values)) if binary else None,
            left_out=len(a.keys() ^ b.keys()),
        )
        result.append(pair)
    return result


def arms(report: Report) -> list[ArmItems]:
    """Every other arm against the baseline, where runs of the same seed have the same tasks."""
    base = _by_seed(report.baseline)
    return [found for row in report.others for found in _against(row.name, _by_seed(row), base)]


def table(report: Report, most: int | None = None) -> Table:
    """The arms' evaluations against the baseline's."""
    lines = []
    for found in arms(report):
        difference = found.difference
        span = "–" if difference.low is None else f"{difference.low:+.4g} to {difference.high:+.4g}"
        sizes = (str(found.seeds), f"{found.items:,}")
        lines.append(
            (found.arm, found.task, found.metric, f"{difference.value:+.4g}", span, *sizes)
        )
    return Table(
        name="items",
        title=f"evaluations, difference to {report.baseline.name}",
        heads=("arm", "task", "metric", "difference", "95 % interval", "seeds", "items"),
        lines=lines if most is None else lines[: 4 * most],
        notes=[BOTH_LEVELS],
        align="<<<>>>>",
    )


def _by_seed(row: Row) -> dict[int, dict[str, Path]]:
    return {
        run.seed: files
        for run in row.arm.done
        if run.seed is not None and (files := evaluated(run.path))
    }


def _against(
    arm: str, files: Mapping[int, dict[str, Path]], base: Mapping[int, dict[str, Path]]
) -> list[ArmItems]:
    result = []
    for task in dict.fromkeys(task for of_seed in files.values() for task in of_seed):
        seeds = [s for s in files if task in files[s] and task in base.get(s, {})]
        sides = [(_read(files[s][task]), _read(base[s][task])) for s in seeds]
        both = [rows for side in sides for rows in side]
        ids = [i for i in both[0] if all(i in rows for rows in both)] if both else []
        for metric in _metrics(both, ids):
            table = np.array(
                [[_value(a[i], metric) - _value(b[i], metric) for i in ids] for a, b in sides]
            )
            weights = np.array([_weight(both[0][i], metric) for i in ids])
            columns = _columns(table, weights, _clusters(both[0], ids))
            found = two_level(columns) if len(seeds) > 1 else mean(columns[0])
            result.append(
                ArmItems(
                    arm=arm,
                    task=task,
                    metric=metric,
                    seeds=len(seeds),
                    items=len(ids),
                    difference=found,
                )
            )
    return result


def _columns(table: np.ndarray, weights: np.ndarray, clusters: list[str] | None) -> np.ndarray:
    """A table of differences [seeds, items] whose plain mean is the weighted one, and with a column
    a cluster where there are any.
    """
    overall = float((table * weights).sum() / (weights.sum() * len(table)))
    scaled = overall + (table - overall) * weights / weights.mean()
    if clusters is None:
        return scaled
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    columns = np.zeros((len(table), len(numbers)))
    for column, cluster in enumerate(clusters):
        columns[:, numbers[cluster]] += scaled[:, column] * len(numbers) / len(clusters)
    return columns


def _metrics(both: Sequence[Rows], ids: Sequence[str]) -> list[str]:
    """The metrics that every item has in every evaluation."""
    if not ids:
        return []
    names = both[0][ids[0]].get("metrics", {})
    return [
        name
        for name in names
        if all(name in rows[i].get("metrics", {}) for rows in both for i in ids)
    ]


def _read(path: Path) -> Rows:
    return {str(row["id"]): row for row in read_rows(path) if "id" in row}


def _value(row: Mapping[str, Any], metric: str) -> float:
    return float(row["metrics"][metric])


def _weight(row: Mapping[str, Any], metric: str) -> float:
    return float((row.get("weights") or {}).get(metric, 1.0))


def _clusters(rows: Rows, ids: Sequence[str]) -> list[str] | None:
    names = [rows[i].get("cluster") for i in ids]
    if all(name is None for name in names):
        return None
    return [f"item {i}" if name is None else str(name) for i, name in zip(ids, names, strict=True)]
