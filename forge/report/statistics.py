"""Mean, deviation and interval over seeds; the difference between two arms; Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ROUNDING = 1e-12
"""A spread below this share of the values is rounding, and no test divides by it."""
PAIRED, WELCH, NONE = "paired", "Welch", "none"
BySeed = Mapping[int, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The mean, deviation and interval of n values. None: not defined for n values.

    The standard deviation has n - 1 in the denominator; the interval is Student's t interval of the
    mean.
    """

    n: int = 0
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm minus the baseline. method: PAIRED by seed, WELCH, or NONE, with `why`. n: pairs of
    runs, 0 without pairing. All None: not compared.
    """

    mean: float | None = None
    method: str | None = None
    n: int | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    why: str = ""


def summarize(values: Sequence[float]) -> Summary:
    n = len(values)
    if n < 2:
        return Summary(n=n, mean=values[0] if n else None)
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / n**0.5
    return Summary(n=n, mean=mean, deviation=deviation, low=mean - half, high=mean + half)


def difference(arm: BySeed, baseline: BySeed) -> Difference:
    """The arm minus the baseline, each side given as the values of every seed.

    A paired t-test (ttest_rel) over the common seeds, for at least two common seeds and at least
    half of the smaller side's seeds; else Welch's t-test of unequal variances (ttest_ind). The
    interval is of 95 %, the p-value two-sided.
    """
    common, smaller = sorted(arm.keys() & baseline.keys()), min(len(arm), len(baseline))
    once = all(len(values) == 1 for side in (arm, baseline) for values in side.values())
    if once and (len(common) >= max(2, smaller / 2) or len(common) == 1 == smaller):
        pairs = [np.array([side[seed][0] for seed in common]) for side in (arm, baseline)]
        return _tested(PAIRED, *pairs)
    return _tested(WELCH, *(np.concatenate(list(side.values())) for side in (arm, baseline)))


def _tested(method: str, a: np.ndarray, b: np.ndarray) -> Difference:
    mean, n = float(np.mean(a) - np.mean(b)), len(a) if method == PAIRED else 0
    if method == PAIRED:
        mean, spread = float(np.mean(a - b)), np.std(a - b)
        single, constant = "one seed", "the same difference in every seed"
    else:
        spread, single, constant = max(np.std(a), np.std(b)), "one run", "no spread on either side"
    if min(len(a), len(b)) < 2:
        return Difference(mean=mean, method=NONE, n=n, why=single)
    if spread <= ROUNDING * np.max(np.abs(a)):
        return Difference(mean=mean, method=NONE, n=n, why=constant)
    test: Any = (
        stats.ttest_rel(a, b) if method == PAIRED else stats.ttest_ind(a, b, equal_var=False)
    )
    low, high = map(float, test.confidence_interval(CONFIDENCE))
    return Difference(mean=mean, method=method, n=n, low=low, high=high, p=float(test.pvalue))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values corrected for several comparisons by Holm's step-down method (Scandinavian Journal
    of Statistics 6, 1979). None stays None and does not count.
    """
    ranked = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(ranked):
        corrected[i] = highest = max(highest, min(1.0, (len(ranked) - rank) * p))
    return corrected
