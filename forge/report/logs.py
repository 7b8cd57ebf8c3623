"""The logs of a run, each metric as a curve, and the time at which a curve reaches a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from forge.rundir.files import rows_if_readable

FILES = ("metrics.jsonl", "performance.jsonl")
COUNTS = {"step", "time", "tokens"}
Column = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Curve:
    """The finite values of a metric: arrays of shape [logs].

    tokens and seconds (of training) are NaN if the run has not logged the count.
    """

    steps: np.ndarray
    values: np.ndarray
    tokens: np.ndarray
    seconds: np.ndarray


class Log:
    """The logged metrics of a run; the files are read on first use."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    @property
    def last_step(self) -> int:
        return int(_last(self._column("step")) or 0)

    @property
    def tokens(self) -> int | None:
        tokens = _last(self._column("tokens"))
        return None if tokens is None else int(tokens)

    @property
    def seconds(self) -> float | None:
        """Seconds of training by the last log, without evaluation, checkpoints and waiting."""
        return _last(self._seconds)

    @property
    def metrics(self) -> list[str]:
        """The logged metrics, without the counts of steps, tokens and time."""
        return [name for name in self._columns if name not in COUNTS]

    def track(self) -> Curve:
        """Tokens and seconds at every logged step; the values are the steps."""
        steps = np.unique(np.r_[self._column("tokens")[0], self._seconds[0]])
        return self._at(steps, steps)

    def curve(self, metric: str) -> Curve:
        """The curve of a metric, empty when the metric was never logged.

        The last value of a step counts; tokens and seconds are interpolated between their own logs.
        """
        return self._at(*self._column(metric))

    def _at(self, steps: np.ndarray, values: np.ndarray) -> Curve:
        tokens, seconds = (
            np.interp(steps, np.r_[0, marks], np.r_[0, count]) if len(marks) else steps * np.nan
            for marks, count in (self._column("tokens"), self._seconds)
        )
        return Curve(steps, values, tokens, seconds)

    def _column(self, name: str) -> Column:
        return self._columns.get(name, (np.empty(0), np.empty(0)))

    @cached_property
    def _seconds(self) -> Column:
        steps, seconds = self._column("step_seconds")
        return steps, np.cumsum(seconds * np.diff(steps, prepend=0))

    @cached_property
    def _columns(self) -> dict[str, Column]:
        """Steps and finite values of every metric, as arrays: rows of many runs fill the memory."""
        by_metric: dict[str, dict[int, float]] = {}
        for row in (row for name in FILES for row in rows_if_readable(self.run_dir / name)):
            if isinstance(step := row.get("step"), int):
                for name, value in row.items():
                    if isinstance(value, int | float):
                        by_metric.setdefault(name, {})[step] = value
        return {name: _finite(by_step) for name, by_step in by_metric.items()}


@dataclass(frozen=True, kw_only=True)
class TimeToTarget:
    """The median of the first step, tokens and seconds with a value as good as the target.

    n of `of` runs reached the target. A run without such a value counts as later than all others;
    None where the median falls on an unsuccessful run, or a run has not logged the count.
    """

    n: int | None = None
    of: int = 0
    step: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def time_to_target(curves: Sequence[Curve], target: float, *, higher: bool) -> TimeToTarget:
    firsts = np.full((len(curves), 3), np.inf)
    for first, curve in zip(firsts, curves, strict=True):
        good = np.flatnonzero(curve.values >= target if higher else curve.values <= target)
        if len(good):
            first[:] = [column[good[0]] for column in (curve.steps, curve.tokens, curve.seconds)]
    medians = [float(m) if np.isfinite(m) else None for m in np.median(firsts, axis=0)]
    n = int(np.isfinite(firsts[:, 0]).sum())
    return TimeToTarget(n=n, of=len(curves), step=medians[0], tokens=medians[1], seconds=medians[2])


def _finite(by_step: dict[int, float]) -> Column:
    steps, values = np.array(sorted(by_step.items()), float).T
    return steps[np.isfinite(values)], values[np.isfinite(values)]


def _last(column: Column) -> float | None:
    return float(column[1][-1]) if len(column[1]) else None
