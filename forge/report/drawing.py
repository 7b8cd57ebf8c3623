"""The curves of a page: of an arm over its seeds, thinned out, with the steps of all kept once."""

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
"""About so many numbers has a page of the metrics with bands and differences, and of all others."""
DIGITS, FEWER_DIGITS = 6, 4
POINTS, FEWEST, OTHERS = 300, 40, (12, 120)
"""Points of a curve: at most and at least, and the least and most of a metric without bands."""
TRACK = 24  # points of tokens and time over the steps of an arm


def drawn(report: Report, arms: Sequence[Arm]) -> dict[str, Any]:
    """Every metric that was logged twice: those that a report is about with bands and differences,
    the others as means.

    grids: steps that curves refer to by their place. tracks: tokens and time of each arm.
    """
    grids: dict[tuple[float, ...], int] = {}
    base = report.baseline.arm
    main = dict.fromkeys([report.metric, "train/loss", "eval/loss"])
    names = dict.fromkeys(name for arm in arms for run in arm.runs for name in run.log.metrics)
    others = sorted(name for name in names if name not in main)
    points = min(max(NUMBERS // (6 * 2 * len(arms)), FEWEST), POINTS)
    fewer = min(max(NUMBERS // (max(len(others), 1) * len(arms)), OTHERS[0]), OTHERS[1])

    def placed(found: dict[str, Any] | None) -> dict[str, Any] | None:
        if found is None:
            return None
        steps = tuple(found.pop("step"))
        return {**found, "grid": grids.setdefault(steps, len(grids))}

    curves = []
    for metric in (*main, *others):
        is_main = metric in main
        most = points if is_main else fewer
        values = [placed(curve(arm, metric, points=most, band=is_main)) for arm in arms]
        if not any(one and len(one["mean"]) > 1 for one in values):
            continue
        one: dict[str, Any] = {"metric": metric, "unit": unit(metric), "values": values}
        if is_main and report.compared and len(arms) > 1:
            one["differences"] = [
                None if arm is base else placed(curve(arm, metric, base, points=points))
                for arm in arms
            ]
        curves.append(one)
    tracks = [track(arm) for arm in arms]
    return {"curves": curves, "grids": [list(steps) for steps in grids], "tracks": tracks}


def curve(
    arm: Arm, metric: str, baseline: Arm | None = None, *, points: int = POINTS, band: bool = True
) -> dict[str, Any] | None:
    """Mean, lowest and highest over the seeds of an arm; over runs under way where none is done.

    It is taken at the steps of the run that logged least, as far as all of them have come.
    baseline: of the differences to its runs of the same seeds, or to the mean of all of them where
    no seed is common. band: lowest and highest too, where there are several runs.
    """
    own = _counted_curves(arm, metric)
    lines: list[tuple[Curve, list[Curve]]] = [(one, []) for _, one in own]
    if baseline is not None:
        base = _counted_curves(baseline, metric)
        pairs = [(one, [other]) for seed, one in own for same, other in base if seed == same]
        lines = pairs or [(one, [other for _, other in base]) for _, one in own if base]
    if not lines:
        return None
    every = [curve for one, others in lines for curve in (one, *others)]
    low, high = max(curve.steps[0] for curve in every), min(curve.steps[-1] for curve in every)
    steps = min((one.steps for one, _ in lines), key=len)
    steps = steps[(steps >= low) & (steps <= high)]
    if not len(steps):
        return None

    def at_steps(curves: Sequence[Curve]) -> np.ndarray:
        return np.array([np.interp(steps, one.steps, one.values) for one in curves])

    values = at_steps([one for one, _ in lines])
    if baseline is not None:
        values = values - [at_steps(others).mean(axis=0) for _, others in lines]
    columns = {"mean": values.mean(axis=0)}
    if band and len(lines) > 1:
        columns |= {"low": values.min(axis=0), "high": values.max(axis=0)}
    digits = DIGITS if band else FEWER_DIGITS
    found = {name: thinned(column, points, digits) for name, column in columns.items()}
    found["step"] = thinned(steps, points)
    return {"done": bool(arm.done), "n": len(lines), **found}


def track(arm: Arm) -> dict[str, list[float | None]] | None:
    """Tokens and seconds of training over the steps, means of the runs that count."""
    return track_of([run.log.track() for run in arm.done or arm.runs])


def track_of(found: Sequence[Curve]) -> dict[str, list[float | None]] | None:
    runs = [one for one in found if len(one.steps)]
    if not runs:
        return None
    steps = min((one.steps for one in runs), key=len)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(TRACK, len(steps))).astype(int))]
    columns: dict[str, list[float | None]] = {"step": [rounded(step) for step in steps.tolist()]}
    for name in ("tokens", "seconds"):
        values = np.mean([np.interp(steps, one.steps, getattr(one, name)) for one in runs], axis=0)
        if np.isfinite(values).all():
            columns[name] = [rounded(value, DIGITS) for value in values.tolist()]
    return columns


def thinned(values: np.ndarray, points: int, digits: int = DIGITS) -> list[float | None]:
    """At most so many values; of more, neighbours are averaged."""
    if len(values) > points:
        starts = np.arange(points) * len(values) // points
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    return [rounded(value, digits) for value in values.tolist()]


def _counted_curves(arm: Arm, metric: str) -> list[tuple[int | None, Curve]]:
    """Seed and curve of the runs that are done with a value of the metric, else of all that are
    done, else of those under way.
    """
    runs: Sequence[Run] = [run for run in arm.done if metric in run.final] or arm.done or arm.runs
    found = [(run.seed, run.log.curve(metric)) for run in runs]
    return [(seed, one) for seed, one in found if len(one.steps)]
