"""Means, intervals, differences and Holm's correction against closed forms and publications."""

from __future__ import annotations

import math

import pytest

from forge.report.statistics import (
    NONE,
    PAIRED,
    WELCH,
    Difference,
    Summary,
    difference,
    holm,
    summarize,
)

# Student (1908), The probable error of a mean, Biometrika 6: hours of sleep gained by ten patients
# from two drugs; data `sleep` of R.
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def by_seed(values: list[float], first: int = 0) -> dict[int, list[float]]:
    return {first + i: [value] for i, value in enumerate(values)}


def test_mean_deviation_and_interval() -> None:
    """R: t.test(sleep$extra[1:10]) gives 0.75 and -0.5297804 to 2.0297804."""
    found = summarize(FIRST)
    expected = (0.75, -0.5297804, 2.0297804)
    assert (found.mean, found.low, found.high) == pytest.approx(expected, abs=5e-8)
    assert (found.n, summarize([1.0, 2.0, 3.0]).deviation) == (10, 1.0)
    assert summarize([4.5, 4.5]) == Summary(n=2, mean=4.5, deviation=0.0, low=4.5, high=4.5)
    assert summarize([4.5]) == Summary(n=1, mean=4.5)
    assert summarize([]) == Summary(n=0)


def test_differences_of_students_data() -> None:
    """R: t.test(extra ~ group, sleep, paired = TRUE): -2.4598858 to -0.7001142, p = 0.002833;
    unpaired: -3.3654832 to 0.2054832, p = 0.07939.
    """
    found = difference(by_seed(FIRST), by_seed(SECOND))
    assert (found.method, found.n) == (PAIRED, 10)
    expected = (-1.58, -2.4598858, -0.7001142, 0.002833)
    assert (found.mean, found.low, found.high, found.p) == pytest.approx(expected, abs=5e-7)
    found = difference(by_seed(FIRST), by_seed(SECOND, first=100))
    assert (found.method, found.n) == (WELCH, 0)
    expected = (-1.58, -3.3654832, 0.2054832, 0.07939)
    assert (found.mean, found.low, found.high, found.p) == pytest.approx(expected, abs=5e-6)


def test_pairs_are_matched_by_seed_and_the_rest_left_out() -> None:
    """Differences 1, 2, 3 over the common seeds: mean 2, t = 2 sqrt(3) with two degrees of freedom,
    p = 1 - t / sqrt(t^2 + 2).
    """
    arm = {3: [13.0], 1: [11.0], 2: [22.0], 9: [99.0]}
    baseline = {1: [10.0], 2: [20.0], 3: [10.0], 8: [-50.0]}
    found = difference(arm, baseline)
    assert (found.method, found.n, found.mean) == (PAIRED, 3, 2.0)
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(t * t + 2), rel=1e-12)


@pytest.mark.parametrize(("common", "method"), [(2, WELCH), (3, PAIRED)])
def test_pairing_needs_half_of_the_smaller_side(common: int, method: str) -> None:
    arm = by_seed([1.0, 2.5, 3.0, 4.5, 5.0])
    baseline = by_seed([1.5, 2.0, 3.1, 4.0, 5.5, 6.0], first=5 - common)
    assert difference(arm, baseline).method == method
    assert difference({1: [1.0, 2.0], 2: [1.5]}, {1: [3.0], 2: [4.5]}).method == WELCH


def test_one_value_gives_a_difference_without_an_interval() -> None:
    one_seed = Difference(mean=-0.5, method=NONE, n=1, why="one seed")
    assert difference({1: [4.0]}, {1: [4.5]}) == one_seed
    assert difference({1: [4.0]}, {1: [4.5], 2: [5.5]}) == one_seed
    one_run = Difference(mean=-0.5, method=NONE, n=0, why="one run")
    assert difference({1: [4.0]}, {2: [4.5]}) == one_run


@pytest.mark.filterwarnings("error")
def test_differences_without_spread_are_not_tested() -> None:
    """0.1 + 0.2 is not 0.3 in floats: rounding is no spread."""
    found = difference({1: [0.1 + 0.2], 2: [1.3]}, {1: [0.2], 2: [1.2]})
    assert (found.mean, found.method, found.p, found.low) == (pytest.approx(0.1), NONE, None, None)
    assert found.why == "the same difference in every seed"
    found = difference(by_seed([1.0, 1.0]), by_seed([2.0, 2.0], first=5))
    assert found.why == "no spread on either side"


def test_holm() -> None:
    """R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") gives 0.03 0.06 0.06 0.02."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.6, 0.7]) == [None, 1.0, 1.0]
