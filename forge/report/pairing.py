"""Runs compared with the first run: each metric at equal steps, or equal tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forge.report.logs import Curve
from forge.report.runs import Run

STEPS, TOKENS = "steps", "tokens"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A metric of two runs at n common positions; `at` is the last position.

    difference: second minus first at the last position; mean, low, high: of the differences at all
    positions; lower: share of positions with a lower second value.
    """

    metric: str
    n: int
    at: float
    first: float
    second: float
    difference: float
    mean: float
    low: float
    high: float
    lower: float


def pair(first: Run, second: Run, metric: str, *, over: str = STEPS) -> Pair | None:
    """Compare a metric of two runs; None without a common position.

    Over steps the positions are the steps logged by both runs. Over tokens the positions are the
    first run's token counts within the second run's range; the second run's values are
    interpolated.
    """
    positions, a, b = _aligned(first.log.curve(metric), second.log.curve(metric), over)
    if not len(positions):
        return None
    differences = b - a
    return Pair(
        metric=metric,
        n=len(positions),
        at=float(positions[-1]),
        first=float(a[-1]),
        second=float(b[-1]),
        difference=float(differences[-1]),
        mean=float(differences.mean()),
        low=float(differences.min()),
        high=float(differences.max()),
        lower=float((differences < 0).mean()),
    )


def common_metrics(runs: Sequence[Run]) -> list[str]:
    """The metrics logged by every run, in the order of the first run."""
    return [name for name in runs[0].log.metrics if all(name in run.log.metrics for run in runs)]


def _aligned(a: Curve, b: Curve, over: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if over == STEPS:
        positions, of_a, of_b = np.intersect1d(a.steps, b.steps, return_indices=True)
        return positions, a.values[of_a], b.values[of_b]
    counted = np.isfinite(b.tokens)
    if not counted.any() or not len(a.tokens):
        return np.empty(0), np.empty(0), np.empty(0)
    tokens, values = b.tokens[counted], b.values[counted]
    shared = (a.tokens >= tokens[0]) & (a.tokens <= tokens[-1])
    return a.tokens[shared], a.values[shared], np.interp(a.tokens[shared], tokens, values)
