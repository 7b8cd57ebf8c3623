"""The metrics that a run has logged, a row a step."""

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
    """{"step": N, name: value, ...} of each step that logged something, oldest first; of several
    logs of a step the last counts, and what is not finite is None.

    metrics: these alone, of the steps that logged one. Raises ValueError for one that never was.
    """
    by_step: dict[int, dict[str, Any]] = {}
    for row in (row for name in (METRICS, PERFORMANCE) for row in read_rows(run_dir / name)):
        if isinstance(step := row.get("step"), int):
            by_step.setdefault(step, {"step": step}).update(row)
    rows = [by_step[step] for step in sorted(by_step)]
    known = dict.fromkeys(name for row in rows for name in row)
    for name in metrics:
        if rows and name not in known:
            fix = did_you_mean(closest(name, known)) or f"logged were {', '.join(known)}"
            raise ValueError(f"the run in {run_dir} has never logged {name}; {fix}")
    if not metrics:
        return rows
    kept = [{name: row[name] for name in ("step", *metrics) if name in row} for row in rows]
    return [row for row in kept if len(row) > 1]


def frame(run_dir: Path, *metrics: str) -> pandas.DataFrame:
    """The same as a data frame: `step` and a column a metric."""
    import pandas

    return pandas.DataFrame(history(run_dir, *metrics))
