"""What the figures of the page are drawn from: numbers of the arms, and curves with bands, thinned
out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from forge.report.comparison import Report, Row
from forge.report.grouping import Arm
from forge.report.series import Series
from forge.report.tables import verdict

POINTS, FEWEST, ALL = 300, 60, 15_000
"""Of a curve on the page; of more, neighbours are averaged. Of many curves each has fewer, so that
they are ALL together, or FEWEST.
"""
DIGITS = 7
UNITS = {
    "loss": "nats a token",
    "bits_per_byte": "bits a byte",
    "tokens_per_second": "tokens a second",
}


def page_data(report: Report, most: int | None = None) -> dict[str, Any]:
    """Arms and curves as plain numbers, baseline: its place among the arms, None where arms are
    ranked. most: arms.
    """
    metrics = list(dict.fromkeys([report.metric, "train/loss", "eval/loss"]))
    rows = report.shown(most)
    base, arms = report.baseline.arm, [row.arm for row in rows]
    points = max(FEWEST, min(POINTS, ALL // len(arms)))
    plain = {metric: [curve(arm, metric, points=points) for arm in arms] for metric in metrics}
    apart = {
        metric: [
            curve(arm, metric, base, points=points) if arm is not base and report.compared else None
            for arm in arms
        ]
        for metric in metrics
    }
    return {
        "metric": report.metric,
        "unit": unit(report.metric),
        "higher": report.higher,
        "baseline": rows.index(report.baseline) if report.compared and report.others else None,
        "arms": [_arm(row, report) for row in rows],
        "curves": [
            {"metric": metric, "unit": unit(metric), "plain": plain[metric], "apart": apart[metric]}
            for metric in metrics
            if any(one and len(one["step"]) > 1 for one in plain[metric])
        ],
    }


def unit(metric: str) -> str:
    """What a metric is counted in; empty for a plain number."""
    return UNITS.get(metric.rpartition("/")[2], "")


def curve(
    arm: Arm, metric: str, baseline: Arm | None = None, *, points: int = POINTS
) -> dict[str, Any] | None:
    """The mean over the seeds of an arm, and the lowest and highest of them; over runs under way
    where none is done.

    It is taken at the steps of the run that logged least, as far as all of them have come.
    baseline: of the differences to its runs of the same seeds, or to the mean of all of them where
    no seed is common.
    """
    own = _logged(arm, metric)
    lines = (
        [(series, ()) for _, series in own]
        if baseline is None
        else _against(own, _logged(baseline, metric))
    )
    if not lines:
        return None
    every = [series for one, others in lines for series in (one, *others)]
    low, high = max(series.steps[0] for series in every), min(series.steps[-1] for series in every)
    least = min((one for one, _ in lines), key=lambda series: len(series.steps)).steps
    steps = least[(least >= low) & (least <= high)]
    if not len(steps):
        return None
    values = [
        _at(one, steps) - np.mean([_at(other, steps) for other in others] or [0.0 * steps], axis=0)
        for one, others in lines
    ]
    clocks = {
        name: np.mean([_at(one, steps, name) for one, _ in lines], axis=0)
        for name in ("tokens", "seconds")
    }
    columns = {
        "step": steps,
        **clocks,
        "mean": np.mean(values, axis=0),
        "low": np.min(values, axis=0),
        "high": np.max(values, axis=0),
    }
    return {
        "done": bool(arm.done),
        "n": len(lines),
        **{name: _thinned(column, points) for name, column in columns.items()},
    }


def _logged(arm: Arm, metric: str) -> list[tuple[int | None, Series]]:
    """The curves of the runs that are done with a value of the metric, else of all done, else of
    those under way; each with its seed.
    """
    runs = [run for run in arm.done if metric in run.final] or arm.done or arm.runs
    found = [(run.seed, run.logged.series(metric)) for run in runs]
    return [(seed, series) for seed, series in found if len(series.steps)]


def _against(
    own: Sequence[tuple[int | None, Series]], base: Sequence[tuple[int | None, Series]]
) -> list[tuple[Series, tuple[Series, ...]]]:
    """Each curve with what is taken from it."""
    pairs = [(one, (other,)) for seed, one in own for same, other in base if seed == same]
    return pairs or [(one, tuple(other for _, other in base)) for _, one in own if base]


def _at(series: Series, steps: np.ndarray, column: str = "values") -> np.ndarray:
    return np.interp(steps, series.steps, getattr(series, column))


def _thinned(values: np.ndarray, points: int) -> list[float | None]:
    if len(values) > points:
        starts = np.arange(points) * len(values) // points
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    return [_plain(value) for value in values.tolist()]


def _arm(row: Row, report: Report) -> dict[str, Any]:
    summary, other = row.summary, row.difference
    return {
        "name": row.name,
        "runs_done": len(row.arm.done),
        "values": [_plain(value) for of_seed in row.values.values() for value in of_seed],
        "mean": _plain(summary and summary.mean),
        "low": _plain(summary and summary.low),
        "high": _plain(summary and summary.high),
        "difference": _plain(other and other.mean),
        "difference_low": _plain(other and other.low),
        "difference_high": _plain(other and other.high),
        "verdict": verdict(row, report.higher),
    }


def _plain(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None
