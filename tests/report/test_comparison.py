"""The numbers of a report against numpy on the files of the runs, and how metric, baseline and
target are chosen.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_sweep import Example, finish

from forge.config.problems import ConfigError
from forge.report.comparison import Report, compare_arms
from forge.report.runs import read_source

T2 = 4.302652729911275  # Student's t with two degrees of freedom at 97.5 %


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=20)


def report(*paths: Path, **choices) -> Report:
    return compare_arms(read_source(paths), **choices)


def losses(sweep: Path, rate: str) -> np.ndarray:
    """eval/loss at the end of an arm's runs in the order of their seeds, from the files."""
    lines = [json.loads(line) for line in (sweep / "ledger.jsonl").read_text().splitlines()]
    of_arm = [line for line in lines if line.get("varied", {}).get("optimizer.lr") == rate]
    results = [json.loads((sweep / line["dir"] / "result.json").read_text()) for line in of_arm]
    return np.array([result["objective"]["value"] for result in results])


def test_numbers_of_arms(sweep: Path) -> None:
    """Differences are paired by seed; points that are not done count nowhere."""
    made = report(sweep, baseline="lr=0.001")
    base, better, worse = made.rows
    values = losses(sweep, "0.001")
    pairs = losses(sweep, "0.002") - values
    for found, numbers in ((base.summary, values), (better.difference, pairs)):
        half = T2 * numbers.std(ddof=1) / np.sqrt(3)
        expected = numbers.mean() + np.array([0, -half, half])
        assert (found.mean, found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert base.summary.deviation == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert base.difference.mean is None
    assert (worse.summary.n, len(worse.arm.runs), worse.summary.deviation) == (1, 4, None)
    assert (made.target, made.target_from) == (base.summary.mean, "the mean of lr=0.001")


def test_p_values_are_corrected_over_the_arms(example: Example) -> None:
    for rate in ("0.001", "0.002", "0.003"):
        for seed in (1, 2, 3, 4):
            example.done([f"optimizer.lr={rate}"], seed=seed)
    others = report(example.sweep.path).others
    smallest = min(row.difference.p or 0 for row in others)
    assert min(row.p_holm or 0 for row in others) == pytest.approx(min(1, 2 * smallest))


def test_a_target_that_was_asked_for(sweep: Path) -> None:
    asked = report(sweep, reach=5.2)
    assert (asked.target, asked.target_from) == (5.2, "as asked for")
    metrics = next(sweep.glob("points/000*/metrics.jsonl")).read_text().splitlines()
    rows = map(json.loads, metrics)
    first = next(row["step"] for row in rows if row.get("eval/loss", 9) <= 5.2)
    found = asked.rows[0].to_target
    assert (found.n, found.step, found.tokens) == (3, first, 2048 * first)


def test_the_baseline(sweep: Path, example: Example) -> None:
    """The one asked for, however its numbers are spelled, else the sweep's, else the best of those
    with the most seeds.
    """
    assert report(sweep).baseline.name == "lr=0.002"
    assert report(sweep, baseline="optimizer.lr=1e-3").baseline.name == "lr=0.001"
    assert report(sweep, baseline="lr=2e-3").baseline.name == "lr=0.002"
    arms = ["sweep.ablation.arms.fast=['optimizer.lr=0.002']", "sweep.ablation.arms.plain=[]"]
    example.common += ["sweep.ablation.baseline=plain", *arms]
    example.done(["optimizer.lr=0.002"], seed=1, arm="fast")
    example.done([], seed=1, arm="plain")
    assert report(example.sweep.path).baseline.name == "plain"
    assert report(example.sweep.path, baseline="fast").baseline.name == "fast"


def test_which_direction_is_better(sweep: Path, example: Example) -> None:
    made = report(sweep, metric="eval/token_accuracy", baseline="lr=0.001")
    assert (made.metric, made.higher) == ("eval/token_accuracy", True)
    assert (made.rows[1].difference.mean or 0) > 0
    assert not report(sweep).higher
    example.common += ["sweeper=optuna", "sweeper.direction=maximize"]
    example.done(["optimizer.lr=0.002"], seed=1)
    assert report(example.sweep.path).higher
    assert not report(example.sweep.path, metric="train/loss").higher


def test_the_best_arm_is_found_among_the_same_seeds(example: Example) -> None:
    """Seed 3 is the worst in every arm: of it alone, the better arm has the higher mean."""
    for seed in (1, 2, 3):
        example.done(["optimizer.lr=0.001"], seed=seed)
    example.done(["optimizer.lr=0.002"], seed=3, gain=0.02)
    made = report(example.sweep.path)
    first, second = (row.summary.mean or 0 for row in made.rows)
    assert second > first
    assert made.ranked[0].name == "lr=0.002"


def test_single_runs_are_arms(sweep: Path) -> None:
    first, second, third = (next((sweep / "points").glob(f"00{n}*")) for n in range(3))
    made = report(second, first, second)
    assert [row.name for row in made.rows] == [second.name, first.name]
    assert made.differing == ["optimizer.lr"]
    assert made.rows[1].difference.why == "one seed"
    assert report(first, third).differing == ["seed"]


REFUSED = {
    "metric=eval/los": "did you mean --metric eval/loss?",
    "metric=x": "they have train/loss, lr, tokens, eval/loss, eval/token_accuracy",
    "baseline=lr=0.01": "did you mean --baseline 'lr=0.001', --baseline 'lr=0.03' or "
    "--baseline 'lr=0.002'?",
    "baseline=b": "its arms are lr=0.001, lr=0.002, lr=0.03",
}


@pytest.mark.parametrize("choice", REFUSED)
def test_what_is_refused(sweep: Path, choice: str) -> None:
    name, _, value = choice.partition("=")
    with pytest.raises(ConfigError) as caught:
        report(sweep, **{name: value})
    (problem,) = caught.value.problems
    assert (problem.key, problem.fix) == (f"--{name} {value}", REFUSED[choice])


def test_runs_without_a_common_objective(example: Example) -> None:
    """One of them is not finite, which is null in the file: it is done, and counts nowhere."""
    example.done([], seed=1)
    broken = example.done([], seed=2)
    finish(broken.path, {"eval/loss": None}, step=20)
    example.common.append("run.objective=train/loss")
    example.done([], seed=3)
    with pytest.raises(ConfigError) as caught:
        report(example.sweep.path)
    (problem,) = caught.value.problems
    assert problem.what == "the runs do not have one run.objective: eval/loss (2), train/loss (1)."
    assert problem.fix == "--metric eval/loss"
    made = report(example.sweep.path, metric="eval/loss")
    assert (made.baseline.summary.n, [run.seed for run in made.without_value]) == (2, [2])
