"""The effects of a grid's factors against pandas, the interaction against a published F-test, and
the words of the answer.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from example_sweep import Example
from scipy import stats

from forge.config.problems import ConfigError
from forge.report.comparison import Report, compare_arms
from forge.report.factors import factors
from forge.report.page import page_data
from forge.report.runs import read_source
from forge.report.swept import Swept
from forge.report.tables import headline, tables

RATES = ("1e-3", "3e-3", "1e-2")
GAINS = {  # by qk_norm and rate: the normalisation helps most at the high rate
    "true": {"1e-3": 0.2, "3e-3": 0.5, "1e-2": 0.48},
    "false": {"1e-3": 0.19, "3e-3": 0.47, "1e-2": 0.30},
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    example = Example(tmp_path_factory.mktemp("grid") / "qk", steps=20)
    for norm, gains in GAINS.items():
        for rate in RATES:
            for seed in (1, 2, 3):
                overrides = [f"model.qk_norm={norm}", f"optimizer.lr={rate}"]
                example.done(overrides, seed=seed, gain=gains[rate])
    return example.sweep.path


def report(path: Path, **choices) -> Report:
    return compare_arms(read_source([path]), **choices)


def frame(sweep: Path) -> pandas.DataFrame:
    """The results from the files, without forge."""
    lines = [json.loads(line) for line in (sweep / "ledger.jsonl").read_text().splitlines()]
    rows = [
        {**line["varied"], "loss": json.loads(text.read_text())["objective"]["value"]}
        for line in lines
        if line["event"] == "point" and (text := sweep / line["dir"] / "result.json").is_file()
    ]
    return pandas.DataFrame(rows)


def test_the_paired_effect_is_that_of_pandas(grid: Path) -> None:
    """Six lines: a column a value, differences, the mean of each seed, and Student's interval."""
    wide = frame(grid).pivot_table("loss", ["optimizer.lr", "seed"], "model.qk_norm")
    by_seed = (wide["false"] - wide["true"]).groupby("seed").mean()
    half = stats.t.ppf(0.975, len(by_seed) - 1) * by_seed.sem()
    expected = (by_seed.mean(), by_seed.mean() - half, by_seed.mean() + half)

    norm, _ = report(grid).factors
    (effect,) = norm.effects
    assert (norm.reference, norm.chosen, effect.value) == ("true", True, "false")
    assert (effect.cells, effect.seeds) == (3, 3)
    found = effect.difference
    assert (found.mean, found.low, found.high) == pytest.approx(expected, rel=1e-9)
    for at in effect.by_level:
        rate = next(rate for rate in RATES if float(rate) == float(at.level))
        pairs = (wide["false"] - wide["true"]).loc[rate]
        test = stats.ttest_1samp(pairs, 0)
        found = (at.difference.mean, at.difference.p)
        assert found == pytest.approx((pairs.mean(), test.pvalue), rel=1e-9)


def test_the_interaction_is_the_f_test_of_a_repeated_measurement(grid: Path) -> None:
    """The F-test of differences by rate and seed, from sums of squares; of two levels it is the
    paired t-test of the differences.
    """
    wide = frame(grid).pivot_table("loss", ["optimizer.lr", "seed"], "model.qk_norm")
    table = (wide["false"] - wide["true"]).unstack("seed").to_numpy()
    effects = table.mean(1, keepdims=True) + table.mean(0, keepdims=True) - table.mean()
    f = 3 * table.mean(1).var(ddof=1) / (((table - effects) ** 2).sum() / 4)
    (effect,) = report(grid).factors[0].effects
    (test,) = effect.interactions
    assert test.p == pytest.approx(stats.f.sf(f, 2, 4), rel=1e-9)
    of_rate = next(e for e in report(grid).factors[1].effects if e.value == "0.001")
    rates = frame(grid).pivot_table("loss", ["model.qk_norm", "seed"], "optimizer.lr")
    other = rates["3e-3"] if report(grid).factors[1].reference == "0.003" else rates["1e-2"]
    pairs = rates["1e-3"] - other
    paired = stats.ttest_rel(pairs.loc["true"], pairs.loc["false"])
    assert of_rate.interactions[0].p == pytest.approx(paired.pvalue, rel=1e-9)


def test_the_answer_is_in_the_first_lines(grid: Path) -> None:
    first, second, *_ = headline(report(grid))
    assert first.startswith("qk_norm: true is better than false by 0.0")
    assert first.endswith("over 3 values of lr x 3 seeds.")
    assert "This depends on lr (p " in second
    assert "each at its own best: false 5.1" not in second
    assert "(lr=0.003), true " in second
    assert [t.name for t in tables(report(grid))][:2] == ["factor-qk_norm", "factor-lr"]


@pytest.mark.parametrize("name", ["model.qk_norm=false", "qk_norm=False"])
def test_a_baseline_may_be_a_level(grid: Path, name: str) -> None:
    made = report(grid, baseline=name)
    norm, rate = made.factors
    assert (norm.reference, norm.chosen, norm.effects[0].value) == ("false", False, "true")
    assert (norm.effects[0].difference.mean or 0) < 0
    assert rate.chosen
    assert made.baseline.name == "qk_norm=false lr=0.003"
    whole = report(grid, baseline="qk_norm=false lr=1e-3")
    assert [factor.reference for factor in whole.factors] == ["false", "0.001"]
    with pytest.raises(ConfigError) as caught:
        report(grid, baseline="qk_norm=fals")
    assert "did you mean" in caught.value.problems[0].fix


def test_own_best_is_the_best_cell_of_each_value(grid: Path) -> None:
    means = frame(grid).groupby(["model.qk_norm", "optimizer.lr"])["loss"].mean()
    best = report(grid).factors[0].best
    for norm in ("true", "false"):
        assert best[norm].summary.mean == pytest.approx(means[norm].min(), rel=1e-12)
        assert float(best[norm].others["lr"]) == float(str(means[norm].idxmin()))
    assert best["true"].difference.mean is None


def test_the_lines_of_the_figure_are_those_of_the_second_factor(grid: Path) -> None:
    options = page_data(report(grid))["swept"]
    assert [(option["word"], option["number"]) for option in options] == [
        ("qk_norm", False),
        ("lr", True),
    ]


def test_gaps_and_sweeps_that_are_no_grid(tmp_path: Path) -> None:
    """A seed that is missing in one cell is left out of all; one option, or a diagonal of points
    (a search) has no factors.
    """
    option = [Swept(key=k, word=k, values=("1", "2"), number=True, log=False) for k in "ab"]
    cells = {
        ("1", "1"): {1: [1.0], 2: [2.0], 3: [4.0]},
        ("2", "1"): {1: [2.0], 2: [3.5], 3: [9.0]},
        ("1", "2"): {1: [1.0], 2: [2.0]},
        ("2", "2"): {1: [3.0], 2: [3.0], 3: [9.0]},
    }
    found, _ = factors(option, cells, higher=False, references={})
    (effect,) = found.effects
    assert (effect.cells, effect.seeds, found.reference) == (2, 2, "1")
    assert effect.difference.mean == pytest.approx(np.mean([1, 1.5, 2, 1]))
    assert factors(option[:1], {("1",): {1: [1.0]}}, higher=False, references={}) == []
    five = [Swept(key=k, word=k, values=tuple("12345"), number=True, log=False) for k in "ab"]
    diagonal = {(str(i), str(i)): {1: [float(i)]} for i in range(1, 6)}
    assert factors(five, diagonal, higher=False, references={}) == []
    single = {levels: {1: values[1]} for levels, values in cells.items()}
    (effect,) = factors(option, single, higher=False, references={})[0].effects
    assert (effect.difference.why, effect.difference.p) == ("one seed", None)
    assert effect.difference.mean == pytest.approx(1.5)
