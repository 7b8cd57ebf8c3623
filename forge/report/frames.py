"""A report as tables of pandas: a row a run, a row an arm, a row a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas

from forge.report.comparison import Report, compare
from forge.report.rows import arm_rows, run_rows
from forge.report.runs import read

Places = str | Path | Sequence[str | Path]


def frame(sweep: Places) -> pandas.DataFrame:
    """A row a run of a sweep, or of runs given as a list: arm, seed, state, step, tokens, seconds,
    what differs, and final metrics.

    Options of the config have their dotted keys. A run that is not done has no final metrics.
    Raises ConfigError.
    """
    return pandas.DataFrame(run_rows(_report(sweep)))


def arms(
    sweep: Places,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
) -> pandas.DataFrame:
    """A row an arm: mean, deviation, interval, difference to the baseline, p-values, how soon it
    reached a value. Raises ConfigError.
    """
    return pandas.DataFrame(arm_rows(_report(sweep, metric=metric, baseline=baseline, reach=reach)))


def curves(sweep: Places, metric: str = "train/loss") -> pandas.DataFrame:
    """A row a log of a metric: arm, seed, run, step, tokens, seconds of training, and the metric.
    Raises ConfigError.
    """
    made, parts = _report(sweep), []
    for run in made.runs:
        series = run.logged.series(metric)
        clocks = {
            "step": series.steps.astype(int),
            "tokens": series.tokens,
            "seconds": series.seconds,
        }
        parts.append(
            pandas.DataFrame(
                {
                    "arm": made.arm_of(run),
                    "seed": run.seed,
                    "run": run.path.name,
                    **clocks,
                    metric: series.values,
                }
            )
        )
    return pandas.concat(parts, ignore_index=True)


def _report(
    sweep: Places,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
) -> Report:
    paths = [sweep] if isinstance(sweep, str | Path) else list(sweep)
    return compare(
        read([Path(path) for path in paths]), metric=metric, baseline=baseline, reach=reach
    )
