"""Mean, deviation and interval over seeds; the difference between two arms; correction for several
comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
SAME = 1e-12
"""Differences that spread less than this, relative to the values, do not spread at all: a test
would divide by rounding.
"""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of n values: mean, standard deviation (n - 1 in the denominator) and Student's t interval of
    the mean; None where n is 1.
    """

    n: int
    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm minus the baseline. method: paired by seed, Welch's, or none, with the reason in
    `why`; n: pairs, 0 without pairing.
    """

    mean: float
    method: str
    n: int = 0
    low: float | None = None
    high: float | None = None
    p: float | None = None
    why: str = ""


PAIRED, WELCH, NONE = "paired", "Welch", "none"


def summarize(values: Sequence[float]) -> Summary:
    """Mean, deviation and 95 % interval of one or more values."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Summary(n=n, mean=mean)
    deviation = float(np.std(values, ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / n**0.5
    return Summary(n=n, mean=mean, deviation=deviation, low=mean - half, high=mean + half)


def difference(
    arm: Mapping[int, Sequence[float]], baseline: Mapping[int, Sequence[float]]
) -> Difference:
    """The arm minus the baseline, each as the values of every seed.

    Paired (ttest_rel) over the seeds that both have, when these are at least two and at least half
    of those of the smaller side; Welch's unequal variances (ttest_ind) otherwise. The interval is
    one of 95 %, the p-value two-sided.
    """
    common = sorted(arm.keys() & baseline.keys())
    once = all(len(values) == 1 for side in (arm, baseline) for values in side.values())
    if once and len(common) >= max(2, min(len(arm), len(baseline)) / 2):
        return _paired(
            np.array([arm[seed][0] for seed in common]),
            np.array([baseline[seed][0] for seed in common]),
        )
    if once and len(common) == 1 == min(len(arm), len(baseline)):
        return Difference(
            mean=arm[common[0]][0] - baseline[common[0]][0], method=NONE, n=1, why="one seed"
        )
    return _welch(
        *(
            np.array([value for values in side.values() for value in values])
            for side in (arm, baseline)
        )
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values corrected for being several, by Holm's step-down method (Scand. J. Statistics 6,
    1979); None stays and does not count.
    """
    ranked = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(ranked):
        highest = max(highest, min(1.0, (len(ranked) - rank) * p))
        corrected[i] = highest
    return corrected


def _paired(a: np.ndarray, b: np.ndarray) -> Difference:
    mean = float(np.mean(a - b))
    if _same(np.std(a - b), a):
        return Difference(mean=mean, method=NONE, n=len(a), why="the same difference in every seed")
    low, high, p = _tested(stats.ttest_rel(a, b))
    return Difference(mean=mean, method=PAIRED, n=len(a), low=low, high=high, p=p)


def _welch(a: np.ndarray, b: np.ndarray) -> Difference:
    mean = float(np.mean(a) - np.mean(b))
    if len(a) < 2 or len(b) < 2:
        return Difference(mean=mean, method=NONE, why="one run")
    if _same(max(np.std(a), np.std(b)), a):
        return Difference(mean=mean, method=NONE, why="no spread on either side")
    low, high, p = _tested(stats.ttest_ind(a, b, equal_var=False))
    return Difference(mean=mean, method=WELCH, low=low, high=high, p=p)


def _tested(result: Any) -> tuple[float, float, float]:
    interval = result.confidence_interval(CONFIDENCE)
    return float(interval.low), float(interval.high), float(result.pvalue)


def _same(spread: np.floating, values: np.ndarray) -> bool:
    return float(spread) <= SAME * float(np.max(np.abs(values)))
