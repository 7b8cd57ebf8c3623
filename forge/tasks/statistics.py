"""Means over the items of a task, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Estimate(NamedTuple):
    """A mean over n items. stderr: its standard error; NaN for fewer than two items or clusters."""

    value: float
    stderr: float
    n: int


def estimate(
    values: Sequence[float],
    weights: Sequence[float] | None = None,
    clusters: Sequence[str | None] | None = None,
) -> Estimate:
    """The weighted mean sum(w v) / sum(w), and its standard error.

    Without weights sqrt(sum((v - mean)^2) / (n (n - 1))); with weights that of the ratio estimator,
    residuals w (v - mean). clusters: items of equal names are summed first (arXiv:2411.00640,
    section 2.2); None stands for a cluster of its own.
    """
    count = len(values)
    if not count:
        return Estimate(math.nan, math.nan, 0)
    shares = [1.0] * count if weights is None else list(weights)
    total = math.fsum(shares)
    if not total:
        return Estimate(math.nan, math.nan, count)
    mean = math.fsum(w * v for w, v in zip(shares, values, strict=True)) / total
    sums: dict[object, float] = {}
    names = [None] * count if clusters is None else clusters
    for index, (weight, value, name) in enumerate(zip(shares, values, names, strict=True)):
        key: object = index if name is None else name
        sums[key] = sums.get(key, 0.0) + weight * (value - mean)
    groups = len(sums)
    if groups < 2:
        return Estimate(mean, math.nan, count)
    spread = math.fsum(residual**2 for residual in sums.values())
    return Estimate(mean, math.sqrt(spread * groups / (groups - 1)) / total, count)
