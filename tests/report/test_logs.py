"""Curves from the rows of a run directory, and how soon they reach a target."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forge.report.logs import Curve, Log, TimeToTarget, time_to_target


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
    for name, rows in (("metrics", metrics), ("performance", performance)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text + '{"step": 50, "train/lo')
    return tmp_path


def test_curves_with_tokens_and_seconds(run: Path) -> None:
    """10 steps of 0.5 s, then 30 of 0.2 s. What is not finite, and a torn line, are left out; of an
    evaluation at step 25 the last value counts.
    """
    log = Log(run)
    train, evaluation = log.curve("train/loss"), log.curve("eval/loss")
    assert [column.tolist() for column in (train.steps, train.values)] == [[10, 40], [6.0, 5.0]]
    assert (train.tokens.tolist(), train.seconds.tolist()) == ([1000, 4000], [5.0, 11.0])
    assert (log.last_step, log.tokens, log.seconds) == (40, 4000, 11.0)
    columns = (evaluation.steps, evaluation.values, evaluation.tokens, evaluation.seconds)
    assert [column.tolist() for column in columns] == [[25], [5.25], [2500], [8.0]]
    assert log.curve("never/logged").steps.tolist() == []


def line(*values: float, seconds: float = 1.0) -> Curve:
    steps = np.arange(1.0, len(values) + 1)
    return Curve(steps, np.array(values), 100 * steps, seconds * steps)


def test_a_run_that_never_reaches_the_target_counts_as_later_than_all() -> None:
    """Medians of 1, 2, never; of 1, 2, 3; and of 1, never, which is between 1 and never."""
    fast, slow, never = line(3.0, 3.0, 3.0), line(5.0, 3.0, 3.0, seconds=2), line(5.0, 5.0, 5.0)
    found = time_to_target([fast, slow, never], 4.0, higher=False)
    assert found == TimeToTarget(n=2, of=3, step=2, tokens=200, seconds=4)
    assert time_to_target([fast, slow, line(5.0, 5.0, 3.0)], 4.0, higher=False).step == 2
    assert time_to_target([fast, never], 4.0, higher=False) == TimeToTarget(n=1, of=2)
    assert time_to_target([line(0.1, 0.3, 0.2)], 0.25, higher=True).step == 2
    no_tokens = Curve(np.array([1.0]), np.array([3.0]), np.array([np.nan]), np.array([2.0]))
    found = time_to_target([no_tokens], 4.0, higher=False)
    assert found == TimeToTarget(n=1, of=1, step=1, tokens=None, seconds=2)
