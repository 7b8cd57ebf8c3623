"""An estimate with its standard error and 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95
TAIL = (1 + CONFIDENCE) / 2


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval. n: samples. None: not defined for so few samples."""

    value: float
    n: int
    stderr: float | None = None
    low: float | None = None
    high: float | None = None


def student(value: float, stderr: float, freedom: float, n: int) -> Interval:
    """Student's t interval of an estimate with `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # imported late: a quarter of a second

    half = float(stdtrit(freedom, TAIL)) * stderr
    return Interval(value=value, n=n, stderr=stderr, low=value - half, high=value + half)
