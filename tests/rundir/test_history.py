"""What a run has logged, as rows and as a data frame."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forge.rundir import outcome
from forge.rundir.files import append_row, read_rows
from forge.rundir.history import history


def test_the_history_of_a_run(tiny_run: Path) -> None:
    """A row a step, whichever file and however many logs its values are in."""
    result = outcome.read_result(tiny_run)
    assert result is not None
    rows = result.history()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    logged = [
        *read_rows(tiny_run / "metrics.jsonl"),
        *read_rows(tiny_run / "performance.jsonl"),
    ]
    assert sum(len(row) for row in logged) > sum(len(row) for row in rows)
    for row in logged:
        assert row.items() <= rows[row["step"] - 1].items()
    evaluated = result.history("eval/loss")
    assert [row["step"] for row in evaluated] == [2, 4, 6]
    assert evaluated[-1] == {"step": 6, "eval/loss": result.metrics["eval/loss"]}
    frame = result.frame("train/loss", "eval/loss")
    assert list(frame.columns) == ["step", "train/loss", "eval/loss"]
    assert frame["train/loss"].tolist() == [row["train/loss"] for row in rows]
    assert frame["eval/loss"].notna().tolist() == [False, True] * 3


def test_a_metric_that_was_never_logged(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"never logged eval/los; did you mean eval/loss"):
        history(tiny_run, "eval/los")
    with pytest.raises(ValueError, match=r"never logged zzz; logged were step, "):
        history(tiny_run, "zzz")
    assert history(tmp_path, "eval/loss") == []
    append_row(tmp_path / "metrics.jsonl", {"step": 1, "train/loss": math.nan})
    assert history(tmp_path) == [{"step": 1, "train/loss": None}]
