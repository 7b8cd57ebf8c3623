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
from forge.launch.sweep.best import is_higher_better
from forge.report.comparison import Report, compare
from forge.report.runs import read

T = {2: 4.302652729911275}  # Student's t at 97.5 %, by degrees of freedom


def report(*paths: Path, **choices) -> Report:
    return compare(read(paths), **choices)


def losses(sweep: Path, rate: str) -> dict[int, float]:
    """eval/loss at the end of an arm's runs by seed, straight from the files."""
    found = {}
    for line in map(json.loads, (sweep / "ledger.jsonl").read_text().splitlines()):
        if line.get("varied", {}).get("optimizer.lr") == rate:
            found[int(line["varied"]["seed"])] = json.loads(
                (sweep / line["dir"] / "result.json").read_text()
            )["objective"]["value"]
    return found


def test_numbers_of_an_arm(sweep: Path) -> None:
    made = report(sweep)
    base = np.array(list(losses(sweep, "0.001").values()))
    row = made.baseline.summary
    assert row is not None
    half = T[2] * base.std(ddof=1) / np.sqrt(3)
    assert (row.mean, row.deviation) == pytest.approx((base.mean(), base.std(ddof=1)), rel=1e-12)
    assert (row.low, row.high) == pytest.approx((base.mean() - half, base.mean() + half), rel=1e-9)


def test_difference_is_paired_by_seed(sweep: Path) -> None:
    made = report(sweep)
    base, better = losses(sweep, "0.001"), losses(sweep, "0.002")
    apart = np.array([better[seed] - base[seed] for seed in (1, 2, 3)])
    found = made.rows[1].difference
    assert found is not None
    half = T[2] * apart.std(ddof=1) / np.sqrt(3)
    assert found.mean == pytest.approx(apart.mean(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(
        (apart.mean() - half, apart.mean() + half), rel=1e-9
    )
    assert made.rows[0].difference is None


def test_p_values_are_corrected_over_the_arms(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    for rate in ("0.001", "0.002", "0.003"):
        for seed in (1, 2, 3, 4):
            example.done([f"optimizer.lr={rate}"], seed=seed)
    first, second = (row for row in report(example.sweep.path).others)
    assert first.difference
    assert second.difference
    assert first.difference.p
    assert second.difference.p
    smaller = min(first.difference.p, second.difference.p)
    assert min(first.p_holm or 0, second.p_holm or 0) == pytest.approx(min(1, 2 * smaller))


def test_points_that_are_not_done_count_nowhere(sweep: Path) -> None:
    made = report(sweep)
    row = made.rows[2]
    assert row.summary is not None
    assert (row.summary.n, len(row.arm.runs), row.summary.deviation) == (1, 4, None)
    assert made.states == {"done": 7, "failed": 1, "running": 1, "waiting": 1}
    assert [run.why for run in made.runs if run.why] == [
        "the loss was not finite in 10 steps in a row | see <logs>"
    ]


def test_target_is_the_mean_of_the_baseline_unless_given(sweep: Path) -> None:
    made = report(sweep)
    assert made.baseline.summary
    assert (made.target, made.target_said) == (made.baseline.summary.mean, "the mean of lr=0.001")
    asked = report(sweep, reach=5.2)
    assert (asked.target, asked.target_said) == (5.2, "as asked for")
    found = asked.rows[0].reached
    assert found
    rows = [
        json.loads(line)
        for line in next(sweep.glob("points/000*/metrics.jsonl")).read_text().splitlines()
    ]
    first = next(row["step"] for row in rows if row.get("eval/loss", 9) <= 5.2)
    assert (found.n, found.step, found.tokens) == (3, first, 2048 * first)


def test_baseline_is_the_one_asked_for_else_the_sweeps_else_the_first(
    sweep: Path, tmp_path: Path
) -> None:
    assert report(sweep).baseline.name == "lr=0.001"
    assert report(sweep, baseline="lr=0.002").baseline.name == "lr=0.002"
    example = Example(tmp_path / "ablation", steps=20)
    arms = ["sweep.ablation.arms.fast=['optimizer.lr=0.002']", "sweep.ablation.arms.plain=[]"]
    example.common += ["sweep.ablation.baseline=plain", *arms]
    example.done(["optimizer.lr=0.002"], seed=1, arm="fast")
    example.done([], seed=1, arm="plain")
    assert report(example.sweep.path).baseline.name == "plain"
    assert report(example.sweep.path, baseline="fast").baseline.name == "fast"


def test_a_baseline_however_its_values_are_spelled(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    for rate in ("1e-3", "2e-3"):
        example.done([f"optimizer.lr={rate}"], seed=1)
    assert report(example.sweep.path, baseline="lr=2e-3").baseline.name == "lr=0.002"
    assert report(example.sweep.path, baseline="lr=0.002").baseline.name == "lr=0.002"


def test_another_metric(sweep: Path) -> None:
    made = report(sweep, metric="eval/token_accuracy")
    assert (made.metric, made.higher) == ("eval/token_accuracy", True)
    assert made.rows[1].difference
    assert made.rows[1].difference.mean > 0
    assert not report(sweep).higher


def test_a_search_that_maximizes_its_objective(tmp_path: Path) -> None:
    example = Example(tmp_path / "search", steps=20)
    example.common += ["sweeper=optuna", "sweeper.direction=maximize"]
    example.done(["optimizer.lr=0.002"], seed=1)
    assert report(example.sweep.path).higher
    assert not report(example.sweep.path, metric="train/loss").higher
    assert not is_higher_better(
        "eval/token_accuracy", [{}, {"direction": None}, {"direction": "minimize"}]
    )


def test_a_run_without_a_value(tmp_path: Path) -> None:
    """A metric that was not finite is null in the file: the run is done, and is no number."""
    example = Example(tmp_path / "sweep", steps=20)
    example.done([], seed=1)
    broken = example.done([], seed=2)
    finish(broken.path, {"eval/loss": None}, step=20)
    made = report(example.sweep.path)
    assert made.baseline.summary
    assert made.baseline.summary.n == 1
    assert [run.seed for run in made.without] == [2]


def test_single_runs_are_arms(sweep: Path) -> None:
    first, second = (next((sweep / "points").glob(f"{n}*")) for n in ("000", "001"))
    made = report(second, first, second)
    assert [row.name for row in made.rows] == [second.name, first.name]
    assert made.differing == ["optimizer.lr"]
    assert made.rows[1].difference
    assert made.rows[1].difference.why == "one seed"
    assert report(first, next((sweep / "points").glob("002*"))).differing == ["seed"]


REFUSED = {
    "unknown metric": (
        {"metric": "eval/los"},
        "no run that is done has a final value of eval/los.",
        "did you mean --metric eval/loss?",
    ),
    "far off metric": (
        {"metric": "x"},
        "no run that is done has a final value of x.",
        "they have train/loss, lr, tokens, eval/loss, eval/token_accuracy",
    ),
    "unknown baseline": (
        {"baseline": "lr=0.01"},
        "there is no arm 'lr=0.01'.",
        "did you mean --baseline 'lr=0.001', --baseline 'lr=0.03' or --baseline 'lr=0.002'?",
    ),
    "far off baseline": (
        {"baseline": "b"},
        "there is no arm 'b'.",
        "its arms are lr=0.001, lr=0.002, lr=0.03",
    ),
}


@pytest.mark.parametrize(("choices", "what", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(sweep: Path, choices: dict, what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        report(sweep, **choices)
    (problem,) = caught.value.problems
    assert (problem.what, problem.fix) == (what, fix)


def test_of_many_arms_some_are_named(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    example.done([], seed=1, arm="arm 0")
    for i in range(1, 23):
        example.waiting([], seed=1, arm=f"arm {i}")
    with pytest.raises(ConfigError) as caught:
        report(example.sweep.path, baseline="b")
    assert caught.value.problems[0].fix.endswith(", arm 18, arm 19 and 3 more")


def test_objectives_that_differ(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    for seed in (1, 2):
        example.done([], seed=seed)
    example.common.append("run.objective=train/loss")
    example.done([], seed=3)
    with pytest.raises(ConfigError) as caught:
        report(example.sweep.path)
    (problem,) = caught.value.problems
    assert problem.what == "the runs do not have one run.objective: eval/loss (2), train/loss (1)."
    assert problem.fix == "--metric eval/loss"
    assert len(report(example.sweep.path, metric="train/loss").runs) == 3
