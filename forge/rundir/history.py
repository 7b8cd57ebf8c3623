"""The logged metrics of a run, a row a step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.problems import closest, did_you_mean
from forge.rundir.files import read_rows

if TYPE_CHECKING:
    import pandas

METRICS, PERFORMANCE = "metrics.jsonl", "performance.jsonl"
Rows = list[dict[str, Any]]


def history(run_dir: Path, *metrics: str) -> Rows:
    """{"step": N, name: value, ...} of each step with a log, oldest first.

    Of several logs of a step the last counts; a value not finite is None. metrics: only these, for
    the steps with a log of any. Raises ValueError for a metric never logged.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in (row for name in (METRICS, PERFORMANCE) for row in read_rows(run_dir / name)):
        if isinstance(step := row.get("step"), int):
            by_step.setdefault(step, {"step": step}).update(row)
    rows = [by_step[step] for step in sorted(by_step)]
    logged = dict.fromkeys(name for row in rows for name in row)
    for name in metrics:
        if rows and name not in logged:
            hint = did_you_mean(closest(name, logged)) or f"logged were {', '.join(logged)}"
            raise ValueError(f"the run in {run_dir} has never logged {name}; {hint}")
    if not metrics:
        return rows
    selected = [{name: row[name] for name in ("step", *metrics) if name in row} for row in rows]
    return [row for row in selected if len(row) > 1]


def history_frame(run_dir: Path, *metrics: str) -> pandas.DataFrame:
    """The history as a data frame: `step` and a column a metric."""
    import pandas

    return pandas.DataFrame(history(run_dir, *metrics))
