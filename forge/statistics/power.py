"""What an experiment can show before it runs: the smallest difference that it finds with 80 %
power at 5 %.
"""

from __future__ import annotations

import math

from forge.statistics.interval import TAIL

POWER = 0.8


def smallest_difference(deviation: float, n: int) -> float | None:
    """The smallest mean difference that a two-sided paired t-test of n pairs finds at 5 % with 80 %
    power; None for fewer than two pairs.

    deviation: the standard deviation of a single pair's difference.
    """
    if n < 2:
        return None
    from scipy.special import nctdtrinc, stdtrit

    shift = float(nctdtrinc(n - 1, 1 - POWER, stdtrit(n - 1, TAIL)))
    return shift * deviation / math.sqrt(n)


def smallest_rate_difference(rate: float, n: int, correlation: float = 0.5) -> float:
    """The smallest difference of two rates over the same n items, near `rate`.

    correlation: of an item's results in the two evaluations; a half is usual (Miller, 2411.00640).
    """
    from scipy.special import ndtri

    variance = 2 * rate * (1 - rate) * (1 - correlation)
    return float(ndtri(TAIL) + ndtri(POWER)) * math.sqrt(variance / n)


def enough(deviation: float, difference: float, most: int = 1_000_000) -> int | None:
    """The number of pairs that finds a difference with 80 % power; None above `most`."""
    low, high = 2, 2
    while (smallest_difference(deviation, high) or 0.0) > difference:
        low, high = high, 2 * high
        if high > most:
            return None
    while low < high:
        middle = (low + high) // 2
        if (smallest_difference(deviation, middle) or 0.0) > difference:
            low = middle + 1
        else:
            high = middle
    return high
