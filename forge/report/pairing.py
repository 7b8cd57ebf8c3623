"""Runs beside the first of them: each metric at equal steps, or equal tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forge.report.logs import Curve
from forge.report.runs import Run

STEPS, TOKENS = "steps", "tokens"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A metric of two runs where both have it: n places, the last of them `at`. difference: second
    minus first there; mean, low, high: of the differences at all places; lower: the share of
    places at which the second is lower.
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
    """None where they share no place.

    Over steps the places are those that both have logged; over tokens those of the first, as far as
    the second has come, between whose logs it is interpolated.
    """
    places, a, b = _aligned(first.log.curve(metric), second.log.curve(metric), over)
    if not len(places):
        return None
    differences = b - a
    return Pair(
        metric=metric,
        n=len(places),
        at=float(places[-1]),
        first=float(a[-1]),
        second=float(b[-1]),
        difference=float(differences[-1]),
        mean=float(differences.mean()),
        low=float(differences.min()),
        high=float(differences.max()),
        lower=float((differences < 0).mean()),
    )


def common_metrics(runs: Sequence[Run]) -> list[str]:
    """What every run has logged, in the order of the first."""
    return [name for name in runs[0].log.metrics if all(name in run.log.metrics for run in runs)]


def _aligned(a: Curve, b: Curve, over: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if over == STEPS:
        places, of_a, of_b = np.intersect1d(a.steps, b.steps, return_indices=True)
        return places, a.values[of_a], b.values[of_b]
    known = np.isfinite(b.tokens)
    if not known.any() or not len(a.tokens):
        return np.empty(0), np.empty(0), np.empty(0)
    tokens, values = b.tokens[known], b.values[known]
    kept = (a.tokens >= tokens[0]) & (a.tokens <= tokens[-1])
    return a.tokens[kept], a.values[kept], np.interp(a.tokens[kept], tokens, values)
