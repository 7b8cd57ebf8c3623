"""Evaluations compared item by item: against pandas and scipy on the files, on a terminal and over
seeds and items.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_sweep import Example
from scipy import stats

from forge import compare as verb
from forge.report import items
from forge.report.comparison import compare_arms
from forge.report.runs import read_source
from forge.report.tables import tables
from forge.statistics.two_level import two_level

N = 60
Printed = pytest.CaptureFixture[str]


def evaluate(
    run: Path, right: np.ndarray, bits: np.ndarray, step: int = 20, first: int = 0
) -> None:
    """Write an evaluation as forge.evaluate does: accuracy, and bits a byte weighted by bytes."""
    folder = run / "eval" / "arc"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "id": f"item {first + i}",
            "metrics": {"accuracy": float(right[i]), "bits_per_byte": float(bits[i])},
            "weights": {"bits_per_byte": 10 + i},
            "cluster": None,
        }
        for i in range(len(right))
    ]
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """Two arms of three seeds, and what their items reached: [seed, item]."""
    random = np.random.default_rng(5)
    example = Example(tmp_path_factory.mktemp("items") / "sweep", steps=20)
    hard = random.normal(0, 1, N)
    reached = {}
    for rate, shift in (("0.001", 0.0), ("0.002", 0.6)):
        bits = hard + random.normal(0, 0.3, (3, 1)) + random.normal(0, 0.5, (3, N)) - shift
        reached[rate] = bits
        for seed in (1, 2, 3):
            run = example.done([f"optimizer.lr={rate}"], seed=seed, gain=shift / 10).path
            evaluate(run, bits[seed - 1] < 0, bits[seed - 1])
            evaluate(run, np.ones(3), np.ones(3), step=10)
    return example.sweep.path, reached


def test_two_runs_by_item(sweep: tuple[Path, dict[str, np.ndarray]]) -> None:
    """The newest evaluation counts; the difference is scipy's, and of weights that of a ratio."""
    path, reached = sweep
    first, second = (next(path.glob(f"points/*lr-{rate}_seed-1*")) for rate in reached)
    accuracy, bits = items.pairs(first, second)
    a, b = (reached[rate][0] for rate in reached)
    test = stats.ttest_rel((b < 0).astype(float), (a < 0).astype(float)).confidence_interval(0.95)
    found = accuracy.difference
    assert (found.low, found.high) == pytest.approx((test.low, test.high), rel=1e-9)
    assert accuracy.discordant is not None
    alone = (int(((a < 0) & (b >= 0)).sum()), int(((b < 0) & (a >= 0)).sum()))
    assert (accuracy.discordant.first, accuracy.discordant.second) == alone
    own = stats.binomtest(min(alone), sum(alone)).pvalue
    assert accuracy.discordant.p == pytest.approx(own, rel=1e-9)
    weights = 10 + np.arange(N)
    assert bits.difference.value == pytest.approx(np.average(b - a, weights=weights), rel=1e-9)
    assert bits.discordant is None


def test_items_that_one_run_lacks_are_said(
    sweep: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, capsys: Printed
) -> None:
    path, reached = sweep
    first, second = (next(path.glob(f"points/*lr-{rate}_seed-2*")) for rate in reached)
    evaluate(second, np.ones(N), np.ones(N), step=30, first=1)
    assert verb.main([str(first), str(second)]) == 0
    (second / "eval" / "arc" / "30.jsonl").unlink()
    text = " ".join(capsys.readouterr().out.split())
    assert "A alone B alone p" in text
    assert "Left out: 2 items that one of them lacks." in text
    assert verb.main([str(first), str(second), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)["items"]
    assert [(one["task"], one["metric"]) for one in content] == [
        ("arc", "accuracy"),
        ("arc", "bits_per_byte"),
    ]


def test_arms_over_seeds_and_items(sweep: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, reached = sweep
    report = compare_arms(read_source([path]), baseline="lr=0.001")
    accuracy, bits = items.arms(report)
    a, b = reached.values()
    expected = two_level((b < 0).astype(float) - (a < 0).astype(float))
    assert accuracy.difference == expected
    assert (accuracy.seeds, accuracy.items) == (3, N)
    assert bits.difference.value == pytest.approx(
        np.average((b - a).mean(axis=0), weights=10 + np.arange(N)), rel=1e-9
    )
    table = next(table for table in tables(report) if table.name == "items")
    assert [line[:3] for line in table.lines] == [
        ("lr=0.002", "arc", "accuracy"),
        ("lr=0.002", "arc", "bits_per_byte"),
    ]
