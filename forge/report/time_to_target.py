"""How long a run took to reach a value of a metric: tokens, and seconds of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forge.report.series import Series


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Of `of` runs, `n` logged a value as good as the one asked for; the median step, tokens and
    seconds at which they first did.

    A run that never did counts as later than all others, so that an arm gains nothing by it; where
    the median falls on such a one, or a run has not logged what is counted, it is None.
    """

    n: int
    of: int
    step: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def reached(curves: Sequence[Series], target: float, *, higher: bool) -> Reached:
    """When the runs first logged a value that is at least as good as `target`; nothing is put
    between two logs.
    """
    firsts = [_first(curve, target, higher) for curve in curves]
    step, tokens, seconds = (_median(column) for column in zip(*firsts, strict=True))
    return Reached(
        n=sum(np.isfinite(first[0]) for first in firsts),
        of=len(curves),
        step=step,
        tokens=tokens,
        seconds=seconds,
    )


def _first(curve: Series, target: float, higher: bool) -> tuple[float, ...]:
    good = np.flatnonzero(curve.values >= target if higher else curve.values <= target)
    columns = (curve.steps, curve.tokens, curve.seconds)
    return (
        tuple(float(column[good[0]]) for column in columns)
        if len(good)
        else (np.inf,) * len(columns)
    )


def _median(values: Sequence[float]) -> float | None:
    middle = float(np.median(values))
    return middle if np.isfinite(middle) else None
