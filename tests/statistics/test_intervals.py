"""Intervals and tests over items against closed forms, pandas and publications; their coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas
import pytest
from interval_coverage import KINDS, coverage
from scipy import stats

from forge.statistics.items import mcnemar, mean, paired, pass_at_k, wilson
from forge.statistics.power import enough, smallest_difference, smallest_rate_difference
from forge.statistics.two_level import two_level

RANDOM = np.random.default_rng(0)


def test_a_mean_over_items_is_students() -> None:
    values = RANDOM.normal(2, 1, 30)
    found = mean(values)
    expected = stats.t.interval(0.95, 29, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-10)
    assert found.stderr == pytest.approx(pandas.Series(values).sem(), rel=1e-12)
    assert mean([0.5]).low is None
    with pytest.raises(ValueError, match="one item"):
        mean([])


def test_clusters_of_equal_size_are_items_of_their_means() -> None:
    """With equal clusters the error is that of the cluster means; each item alone is no cluster."""
    values = RANDOM.normal(0, 1, (12, 5)) + RANDOM.normal(0, 2, (12, 1))
    names = [f"document {i}" for i in range(12) for _ in range(5)]
    found = mean(values.ravel(), clusters=names)
    assert found.stderr == pytest.approx(stats.sem(values.mean(axis=1)), rel=1e-12)
    alone = mean(values.ravel(), clusters=range(60))
    assert alone.stderr == pytest.approx(mean(values.ravel()).stderr, rel=1e-12)


def test_weights_repeat_items() -> None:
    """A ratio of sums: bits a byte of documents weighted by bytes; against the delta method."""
    bits, size = RANDOM.normal(900, 50, 40), RANDOM.integers(200, 400, 40).astype(float)
    found = mean(bits / size, weights=size)
    ratio = bits.sum() / size.sum()
    covariance = np.cov(bits, size)
    gradient = np.array([1, -ratio]) / size.mean()
    assert found.value == pytest.approx(ratio, rel=1e-12)
    assert found.stderr == pytest.approx(math.sqrt(gradient @ covariance @ gradient / 40), rel=1e-9)


def test_a_rate_by_wilson() -> None:
    """Against scipy's own; Newcombe (Statistics in Medicine 17, 1998): 81 of 263 gives 0.2553 to
    0.3662.
    """
    found = wilson(81, 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    for successes, n in ((0, 20), (7, 20), (20, 20)):
        own = stats.binomtest(successes, n).proportion_ci(method="wilson")
        found = wilson(successes, n)
        assert (found.low, found.high) == pytest.approx((own.low, own.high), abs=1e-12)


def test_paired_differences_and_mcnemar() -> None:
    """1 of 10 and 9 of 10 discordant items: 2 (1 + 10) / 2^10."""
    a, b = RANDOM.random(200) < 0.5, RANDOM.random(200) < 0.6
    found = paired(a.astype(float), b.astype(float))
    test = stats.ttest_rel(b.astype(float), a.astype(float))
    own = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((own.low, own.high), rel=1e-9)
    first = [True] * 1 + [False] * 9 + [True] * 5
    second = [False] * 1 + [True] * 9 + [True] * 5
    sides = mcnemar(first, second)
    assert (sides.first, sides.second) == (1, 9)
    assert sides.p == pytest.approx(22 / 1024, rel=1e-12)
    assert sides.p == pytest.approx(stats.binomtest(1, 10).pvalue, rel=1e-12)
    assert mcnemar([True], [True]).p == 1.0


def test_pass_at_k_is_the_mean_over_all_choices() -> None:
    right = [True, True, False, False, False, False, False]
    for k in range(1, 8):
        choices = list(itertools.combinations(right, k))
        expected = sum(map(any, choices)) / len(choices)
        assert pass_at_k(7, 2, k) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="pass@9 takes 9 samples"):
        pass_at_k(7, 2, 9)


def test_two_levels_by_the_analysis_of_variance() -> None:
    """Balanced tables: mean squares from sums by pandas; where items do not differ it is the
    interval over seeds.
    """
    table = (
        RANDOM.normal(0, 1, (4, 30)) + RANDOM.normal(0, 1, (4, 1)) + RANDOM.normal(0, 2, (1, 30))
    )
    long = pandas.DataFrame(table).stack().rename_axis(["seed", "item"])
    seeds, items = long.groupby("seed").mean(), long.groupby("item").mean()
    grand = long.mean()
    of_seed = 30 * ((seeds - grand) ** 2).sum() / 3
    of_item = 4 * ((items - grand) ** 2).sum() / 29
    total = ((long - grand) ** 2).sum()
    rest = (total - 3 * of_seed - 29 * of_item) / 87
    found = two_level(table)
    assert found.stderr == pytest.approx(math.sqrt((of_seed + of_item - rest) / 120), rel=1e-10)
    flat = np.repeat(RANDOM.normal(0, 1, (5, 1)), 8, axis=1)
    by_seed = stats.t.interval(0.95, 4, loc=flat.mean(), scale=stats.sem(flat[:, 0]))
    found = two_level(flat)
    assert (found.low, found.high) == pytest.approx(by_seed, rel=1e-9)


@pytest.mark.parametrize("n", [3, 10, 50])
def test_the_smallest_difference_has_80_percent_power(n: int) -> None:
    """Against the noncentral t of scipy.stats, and a simulation of the test itself."""
    shift = smallest_difference(2.0, n) or 0.0
    critical = stats.t.ppf(0.975, n - 1)
    above = stats.nct.sf(critical, n - 1, shift / 2 * math.sqrt(n))
    assert above == pytest.approx(0.8, abs=1e-6)
    pairs = np.random.default_rng(n).normal(shift, 2.0, (4000, n))
    found = (stats.ttest_1samp(pairs, 0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=0.02)
    assert enough(2.0, shift * 1.0001) == n
    assert smallest_difference(2.0, 1) is None


def test_a_thousand_items_show_four_points() -> None:
    """Miller, 2411.00640, section 5: 969 items for 3 points at a variance of 1/9 a difference."""
    assert smallest_rate_difference(0.5, 1000) == pytest.approx(
        2.8016 * math.sqrt(0.25 / 1000), 1e-4
    )
    assert enough(1 / 3, 0.03) == pytest.approx(969, abs=4)


@pytest.mark.parametrize("kind", KINDS)
def test_coverage_of_400_experiments(kind: str) -> None:
    assert 0.93 <= coverage(KINDS[kind]) <= 0.97


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_of_4000_experiments(kind: str) -> None:
    assert 0.935 <= coverage(KINDS[kind], 4000, seed=3) <= 0.965
