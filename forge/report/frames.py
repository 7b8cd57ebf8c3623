"""A report as rows, numbers in full: of CSV files, and of data frames of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forge.config.problems import shown
from forge.report.comparison import Report, Row, compare_arms
from forge.report.runs import Run, read_source
from forge.rundir.directory import Place, path_of

if TYPE_CHECKING:
    import pandas

Places = Place | Sequence[Place]  # sweeps and runs, as objects or by directory


def frame(sweep: Places) -> pandas.DataFrame:
    """A row a run of a sweep, or of a list of runs. Raises ConfigError.

    The columns are arm, seed, state, step, tokens, seconds, the options differing between arms, and
    the final metrics of a finished run.
    """
    import pandas

    return pandas.DataFrame(run_rows(read_report(sweep)))


def arms(
    sweep: Places,
    *,
    metric: str | None = None,
    baseline: str | None = None,
    reach: float | None = None,
) -> pandas.DataFrame:
    """A row an arm: mean, deviation, interval, difference to the baseline, p-values, and time to
    target. Raises ConfigError.
    """
    import pandas

    report = read_report(sweep, metric=metric, baseline=baseline, reach=reach)
    return pandas.DataFrame(arm_rows(report))


def curves(sweep: Places, metric: str = "train/loss") -> pandas.DataFrame:
    """A row a log of a metric: arm, seed, run, step, tokens, seconds of training, and the metric.
    Raises ConfigError.
    """
    return curves_of(read_report(sweep), metric)


def curves_of(report: Report, metric: str) -> pandas.DataFrame:
    """A row a log of a metric in a report, with the columns of `curves`."""
    import pandas

    parts = []
    for run in report.runs:
        curve = run.log.curve(metric)
        columns = {
            "arm": report.arm_of[run],
            "seed": run.seed,
            "run": run.path.name,
            "step": curve.steps.astype(int),
            "tokens": curve.tokens,
            "seconds": curve.seconds,
            metric: curve.values,
        }
        parts.append(pandas.DataFrame(columns))
    return pandas.concat(parts, ignore_index=True)


def arm_rows(report: Report) -> list[dict[str, Any]]:
    return [arm_row(row, report) for row in report.rows]


def run_rows(report: Report) -> list[dict[str, Any]]:
    rows = [_run(run, report) for run in report.runs]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def arm_row(row: Row, report: Report) -> dict[str, Any]:
    """The numbers of an arm; low and high are the ends of 95 % intervals. None: not defined."""
    difference, to_target = row.difference, row.to_target
    return {
        "arm": row.name,
        "baseline": report.compared and row is report.baseline,
        "metric": report.metric,
        "runs": len(row.arm.runs),
        **asdict(row.summary),
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "test": difference.method,
        "pairs": difference.n,
        "p": difference.p,
        "p_holm": row.p_holm,
        "target": report.target,
        "reached": to_target.n,
        "steps_to_target": to_target.step,
        "tokens_to_target": to_target.tokens,
        "seconds_to_target": to_target.seconds,
    }


def _run(run: Run, report: Report) -> dict[str, Any]:
    log = run.log
    basics = {"number": run.point.number, "arm": report.arm_of[run], "seed": run.seed}
    basics |= {"state": run.state, "why": run.why}
    basics |= {"step": log.last_step, "tokens": log.tokens, "seconds": log.seconds}
    options = {key: _cell(run.options.get(key)) for key in report.differing}
    return {**basics, **options, **run.final, **basics, "path": str(run.path)}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else shown(value)


def read_report(sweep: Places, **choices: Any) -> Report:
    """choices: of `compare_arms`. Raises ConfigError."""
    sources = sweep if isinstance(sweep, Sequence) and not isinstance(sweep, str) else [sweep]
    return compare_arms(read_source([path_of(source) for source in sources]), **choices)
