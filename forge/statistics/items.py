"""Estimates over the items of one evaluation, and of two evaluations paired by item."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from forge.statistics.interval import TAIL, Interval, student

Values = Sequence[float] | np.ndarray


def mean(
    values: Values, *, weights: Values | None = None, clusters: Sequence[Hashable] | None = None
) -> Interval:
    """The weighted mean of items, with the standard error by item or clustered.

    Without weights and clusters the error is sqrt(sum (v - mean)^2 / (n (n - 1))). With weights it
    is that of a ratio, by linearisation (Cochran, Sampling Techniques, 1977, 6.3). clusters: the
    document or subject of each item; residuals are summed within a cluster first (Miller,
    2411.00640, section 2.2), with G / (G - 1) for G clusters and G - 1 degrees of freedom.
    """
    value, residuals = _linear(values, weights)
    return _estimate(value, residuals, clusters)


def paired(
    a: Values,
    b: Values,
    *,
    weights: Values | None = None,
    other_weights: Values | None = None,
    clusters: Sequence[Hashable] | None = None,
) -> Interval:
    """The second mean minus the first, over the same items in the same order.

    What an item has in common in both evaluations cancels, which about halves the variance.
    weights, other_weights: of the first and the second side; one pair of sides may share them.
    """
    first, of_first = _linear(a, weights)
    second, of_second = _linear(b, weights if other_weights is None else other_weights)
    return _estimate(second - first, of_second - of_first, clusters)


def wilson(successes: int, n: int) -> Interval:
    """The interval of a rate (Wilson, JASA 22, 1927); never below 0 or above 1."""
    if n < 1:
        raise ValueError("a rate takes one item or more.")
    from scipy.special import ndtri

    z, rate = float(ndtri(TAIL)), successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    stderr = math.sqrt(rate * (1 - rate) / n)
    return Interval(
        value=rate, n=n, stderr=stderr, low=max(centre - half, 0.0), high=min(centre + half, 1.0)
    )


@dataclass(frozen=True, kw_only=True)
class Discordant:
    """Items that one side alone has right. p: of McNemar's exact two-sided test."""

    first: int
    second: int
    p: float


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> Discordant:
    """The exact test that both sides are right equally often (McNemar, Psychometrika 12, 1947):
    the items that one side alone has right are a binomial of one half.
    """
    first = sum(bool(x and not y) for x, y in zip(a, b, strict=True))
    second = sum(bool(y and not x) for x, y in zip(a, b, strict=True))
    n, least = first + second, min(first, second)
    if n == 0 or first == second:
        return Discordant(first=first, second=second, p=1.0)
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return Discordant(first=first, second=second, p=min(2 * tail / 2**n, 1.0))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The chance that one of k samples is correct, unbiased: 1 - C(n - c, k) / C(n, k) for c
    correct of n samples (Chen et al., 2107.03374).
    """
    if not 0 < k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} takes {k} samples or more, and has {correct} of {samples}.")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def _linear(values: Values, weights: Values | None) -> tuple[float, np.ndarray]:
    """The weighted mean, and what each item adds to its error."""
    array = np.asarray(values, dtype=float)
    shares = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=float)
    if not len(array) or len(shares) != len(array) or shares.sum() <= 0:
        raise ValueError("a mean takes one item or more, each with a weight.")
    value = float((shares * array).sum() / shares.sum())
    return value, shares * (array - value) / shares.sum()


def _estimate(value: float, residuals: np.ndarray, clusters: Sequence[Hashable] | None) -> Interval:
    n = len(residuals)
    if clusters is not None:
        sums: dict[Hashable, float] = {}
        for cluster, residual in zip(clusters, residuals, strict=True):
            sums[cluster] = sums.get(cluster, 0.0) + float(residual)
        residuals = np.array(list(sums.values()))
    count = len(residuals)
    if count < 2:
        return Interval(value=value, n=n)
    stderr = float(np.sqrt((residuals**2).sum() * count / (count - 1)))
    return student(value, stderr, count - 1, n)
