"""A report as rows of plain values, numbers in full: of CSV files and of data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from forge.config.problems import shown
from forge.report import flat_config
from forge.report.comparison import Report, Row
from forge.report.runs import Run


def arm_rows(report: Report) -> list[dict[str, Any]]:
    """A row an arm; low and high are the ends of 95 % intervals, None what cannot be said."""
    return [_arm(row, report) for row in report.rows]


def run_rows(report: Report) -> list[dict[str, Any]]:
    """A row a run: arm, seed, state, how far it is, the config where arms differ, and its final
    metrics if it is done.
    """
    rows = [_run(run, report) for run in report.runs]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV with a line of heads; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _arm(row: Row, report: Report) -> dict[str, Any]:
    summary, other, soon = row.summary, row.difference, row.reached
    return {
        "arm": row.name,
        "baseline": report.compared and row is report.baseline,
        "metric": report.metric,
        "runs": len(row.arm.runs),
        "n": summary.n if summary else 0,
        "mean": summary and summary.mean,
        "deviation": summary and summary.deviation,
        "low": summary and summary.low,
        "high": summary and summary.high,
        "difference": other and other.mean,
        "difference_low": other and other.low,
        "difference_high": other and other.high,
        "test": other and other.method,
        "pairs": other and other.n,
        "p": other and other.p,
        "p_holm": row.p_holm,
        "target": report.target,
        "reached": soon and soon.n,
        "steps_to_target": soon and soon.step,
        "tokens_to_target": soon and soon.tokens,
        "seconds_to_target": soon and soon.seconds,
    }


def _run(run: Run, report: Report) -> dict[str, Any]:
    known = {
        "number": run.point.number,
        "arm": report.arm_of(run),
        "seed": run.seed,
        "state": run.state,
        "why": run.why,
    }
    far = {"step": run.step, "tokens": run.logged.tokens, "seconds": run.logged.seconds}
    options = flat_config.options(run.config)
    own = {key: _cell(options.get(key)) for key in report.differing if key not in known}
    final = {name: value for name, value in run.final.items() if name not in (*known, *far)}
    return {**known, **far, **own, **final, "path": str(run.path)}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else shown(value)
