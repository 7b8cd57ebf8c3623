"""Curves from the rows of a run directory, and how soon they reach a value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forge.report.series import Logged, Series
from forge.report.time_to_target import Reached, reached


@pytest.fixture
def run(tmp_path: Path) -> Path:
    metrics = [
        {"step": 10, "train/loss": 6.0, "tokens": 1000},
        {"step": 20, "train/loss": None, "tokens": 2000},
        {"step": 25, "eval/loss": 5.5},
        {"step": 25, "eval/loss": 5.25},
        {"step": 40, "train/loss": 5.0, "tokens": 4000},
    ]
    performance = [
        {"step": 10, "time": 100.0, "step_seconds": 0.5},
        {"step": 40, "time": 900.0, "step_seconds": 0.2},
    ]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in metrics) + '{"step": 50, "train/lo'
    )
    (tmp_path / "performance.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in performance)
    )
    return tmp_path


def test_a_curve_with_its_tokens_and_seconds(run: Path) -> None:
    """10 steps of 0.5 s, then 30 of 0.2 s; what is not finite, and a torn line, are left out."""
    logged = Logged(run)
    series = logged.series("train/loss")
    assert (series.steps.tolist(), series.values.tolist()) == ([10, 40], [6.0, 5.0])
    assert (series.tokens.tolist(), series.seconds.tolist()) == ([1000, 4000], [5.0, 11.0])
    assert (logged.last_step, logged.tokens, logged.seconds) == (40, 4000, 11.0)


@pytest.mark.parametrize("damaged", ["", '{"step": 15, "train/l\n', "[1]\n", "7\n"])
def test_a_damaged_line_and_what_is_not_finite_are_left_out(tmp_path: Path, damaged: str) -> None:
    rows = (
        '{"step": 10, "train/loss": 6.0}\n'
        + damaged
        + '{"step": 20, "train/loss": NaN}\n{"step": 30, "train/loss": 5.0}\n'
    )
    (tmp_path / "metrics.jsonl").write_text(rows)
    series = Logged(tmp_path).series("train/loss")
    assert (series.steps.tolist(), series.values.tolist()) == ([10, 30], [6.0, 5.0])
    assert Logged(tmp_path).last_step == 30


def test_an_evaluation_between_two_logs(run: Path) -> None:
    """The last value of a step counts; its tokens and seconds lie straight between those of the
    logs around it.
    """
    series = Logged(run).series("eval/loss")
    assert [
        column.tolist() for column in (series.steps, series.values, series.tokens, series.seconds)
    ] == [[25], [5.25], [2500], [8.0]]


def test_what_was_never_logged(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    assert logged.series("train/loss").steps.tolist() == []
    assert (logged.last_step, logged.tokens, logged.seconds) == (0, None, None)


def test_tokens_and_seconds_that_were_not_logged(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n')
    series = Logged(tmp_path).series("train/loss")
    assert np.isnan(series.tokens).all()
    assert np.isnan(series.seconds).all()


def line(*values: float, seconds: float = 1.0) -> Series:
    steps = np.arange(1.0, len(values) + 1)
    return Series(steps, np.array(values), 100 * steps, seconds * steps)


def test_the_first_log_that_is_as_good(run: Path) -> None:
    found = reached([line(5.0, 4.0, 4.5, 3.0)], 4.0, higher=False)
    assert found == Reached(n=1, of=1, step=2, tokens=200, seconds=2)
    assert reached([line(0.1, 0.3, 0.2)], 0.25, higher=True).step == 2


def test_a_run_that_never_did_counts_as_later_than_all() -> None:
    """Medians of 1, 2, never; of 1, 2, 3; and of 1, never, which is between 1 and never."""
    fast, slow, never = line(3.0, 3.0, 3.0), line(5.0, 3.0, 3.0, seconds=2), line(5.0, 5.0, 5.0)
    assert reached([fast, slow, never], 4.0, higher=False) == Reached(
        n=2, of=3, step=2, tokens=200, seconds=4
    )
    assert reached([fast, slow, line(5.0, 5.0, 3.0)], 4.0, higher=False).step == 2
    assert reached([fast, never], 4.0, higher=False) == Reached(n=1, of=2)
    assert reached([never], 4.0, higher=False) == Reached(n=0, of=1)


def test_tokens_that_a_run_has_not_logged() -> None:
    curve = Series(np.array([1.0]), np.array([3.0]), np.array([np.nan]), np.array([2.0]))
    assert reached([curve], 4.0, higher=False) == Reached(n=1, of=1, step=1, tokens=None, seconds=2)
