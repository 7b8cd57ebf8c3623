"""Numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forge.config.units import compact

NOTHING = "–"


@dataclass(frozen=True)
class Decimals:
    """Writes all values of one metric with as many decimals as show three digits of their spread."""

    places: int

    @classmethod
    def of(cls, spreads: Sequence[float], values: Sequence[float]) -> Decimals:
        """By deviations over seeds; without any, by how far the values are apart; without that,
        four digits of a value.
        """
        known = sorted(spread for spread in spreads if spread > 0)
        size = known[len(known) // 2] if known else max(values) - min(values)
        size = size or abs(values[0]) / 10 or 1.0
        return cls(min(max(2 - math.floor(math.log10(size)), 0), 12))

    def number(self, value: float | None, *, sign: str = "") -> str:
        """A value."""
        if value is None:
            return NOTHING
        text = f"{value:{sign},.{self.places}f}"
        return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text

    def signed(self, value: float | None) -> str:
        """A difference."""
        return self.number(value, sign="+")

    def interval(self, low: float | None, high: float | None, *, sign: str = "") -> str:
        """Both ends."""
        return (
            NOTHING
            if low is None or high is None
            else f"{self.number(low, sign=sign)} to {self.number(high, sign=sign)}"
        )


def p_value(value: float | None) -> str:
    """A p-value with two digits that mean something."""
    if value is None:
        return NOTHING
    return "<0.0001" if value < 1e-4 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def count(value: float | None) -> str:
    """A large count: 1.64M."""
    return NOTHING if value is None else compact(value)


def duration(seconds: float | None) -> str:
    """Seconds in the unit that fits."""
    if seconds is None:
        return NOTHING
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def counted(n: int, what: str, several: str = "") -> str:
    """'1 run', '2 runs'."""
    return f"{n:,} {what if n == 1 else several or what + 's'}"
