"""The curves of a page: of an arm over its seeds, thinned out; equal steps are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forge.report.comparison import Report
from forge.report.grouping import Arm
from forge.report.html import rounded, unit
from forge.report.logs import Curve
from forge.report.runs import Run

NUMBERS = 10_000
"""Approximate count of a page's numbers for the main metrics, and again for all other metrics."""
DIGITS, FEWER_DIGITS = 6, 4
POINTS, FEWEST, OTHERS = 300, 40, (12, 120)
"""Points of a curve: at most and at least, and the least and most of a metric without bands."""
TRACK = 24  # points of tokens and time over the steps of an arm


def metric_curves(report: Report, arms: Sequence[Arm]) -> dict[str, Any]:
    """The curves of every metric logged at least twice.

    The report's main metrics have bands and differences, all other metrics means only. grids:
    steps, referred to by index in the curves. tracks: tokens and time of each arm.
    """
    grids: dict[tuple[float, ...], int] = {}
    base = report.baseline.arm
    main = dict.fromkeys([report.metric, "train/loss", "eval/loss"])
    names = dict.fromkeys(name for arm in arms for run in arm.runs for name in run.log.metrics)
    secondary = sorted(name for name in names if name not in main)
    points = min(max(NUMBERS // (6 * 2 * len(arms)), FEWEST), POINTS)
    fewer = min(max(NUMBERS // (max(len(secondary), 1) * len(arms)), OTHERS[0]), OTHERS[1])

    def placed(found: dict[str, Any] | None) -> dict[str, Any] | None:
        if found is None:
            return None
        steps = tuple(found.pop("step"))
        return {**found, "grid": grids.setdefault(steps, len(grids))}

    curves = []
    for metric in (*main, *secondary):
        is_main = metric in main
        most = points if is_main else fewer
        values = [placed(curve(arm, metric, points=most, band=is_main)) for arm in arms]
        if not any(line and len(line["mean"]) > 1 for line in values):
            continue
        figure: dict[str, Any] = {"metric": metric, "unit": unit(metric), "values": values}
        if is_main and report.compared and len(arms) > 1:
            figure["differences"] = [
                None if arm is base else placed(curve(arm, metric, base, points=points))
                for arm in arms
            ]
        curves.append(figure)
    tracks = [track(arm) for arm in arms]
    return {"curves": curves, "grids": [list(steps) for steps in grids], "tracks": tracks}


def curve(
    arm: Arm, metric: str, baseline: Arm | None = None, *, points: int = POINTS, band: bool = True
) -> dict[str, Any] | None:
    """Mean, lowest and highest over the seeds of an arm; over running runs where no run is done.

    The values are interpolated to the steps of the run with the fewest logs, up to the last step
    common to all runs. baseline: curves are differences to its runs of the same seeds, or to the
    mean of all its runs where no seed is common. band: with lowest and highest for several runs.
    """
    lines = _lines(arm, metric, baseline)
    if not lines:
        return None
    every = [curve for line, references in lines for curve in (line, *references)]
    low, high = max(curve.steps[0] for curve in every), min(curve.steps[-1] for curve in every)
    steps = min((line.steps for line, _ in lines), key=len)
    steps = steps[(steps >= low) & (steps <= high)]
    if not len(steps):
        return None

    def at_steps(curves: Sequence[Curve]) -> np.ndarray:
        return np.array([np.interp(steps, line.steps, line.values) for line in curves])

    values = at_steps([line for line, _ in lines])
    if baseline is not None:
        values = values - [at_steps(references).mean(axis=0) for _, references in lines]
    columns = {"mean": values.mean(axis=0)}
    if band and len(lines) > 1:
        columns |= {"low": values.min(axis=0), "high": values.max(axis=0)}
    digits = DIGITS if band else FEWER_DIGITS
    result = {name: thinned(column, points, digits) for name, column in columns.items()}
    result["step"] = thinned(steps, points)
    return {"done": bool(arm.done), "n": len(lines), **result}


def _lines(arm: Arm, metric: str, baseline: Arm | None) -> list[tuple[Curve, list[Curve]]]:
    """Each curve of an arm, with the curves of the baseline to subtract."""
    lines = _counted_curves(arm, metric)
    if baseline is None:
        return [(line, []) for _, line in lines]
    base = _counted_curves(baseline, metric)
    pairs = [(line, [other]) for seed, line in lines for same, other in base if seed == same]
    return pairs or [(line, [other for _, other in base]) for _, line in lines if base]


def track(arm: Arm) -> dict[str, list[float | None]] | None:
    """Tokens and seconds of training over the steps, means of the counted runs."""
    return track_of([run.log.track() for run in arm.done or arm.runs])


def track_of(found: Sequence[Curve]) -> dict[str, list[float | None]] | None:
    runs = [run for run in found if len(run.steps)]
    if not runs:
        return None
    steps = min((run.steps for run in runs), key=len)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(TRACK, len(steps))).astype(int))]
    columns: dict[str, list[float | None]] = {"step": [rounded(step) for step in steps.tolist()]}
    for name in ("tokens", "seconds"):
        values = np.mean([np.interp(steps, run.steps, getattr(run, name)) for run in runs], axis=0)
        if np.isfinite(values).all():
            columns[name] = [rounded(value, DIGITS) for value in values.tolist()]
    return columns


def thinned(values: np.ndarray, points: int, digits: int = DIGITS) -> list[float | None]:
    """`values` with at most `points` entries; neighbours of a longer array are averaged."""
    if len(values) > points:
        starts = np.arange(points) * len(values) // points
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    return [rounded(value, digits) for value in values.tolist()]


def _counted_curves(arm: Arm, metric: str) -> list[tuple[int | None, Curve]]:
    """Seed and curve of each counted run of an arm.

    Counted runs are the finished runs with a value of the metric, else all finished runs, else the
    running runs.
    """
    runs: Sequence[Run] = [run for run in arm.done if metric in run.final] or arm.done or arm.runs
    lines = [(run.seed, run.log.curve(metric)) for run in runs]
    return [(seed, line) for seed, line in lines if len(line.steps)]
