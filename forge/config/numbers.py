"""Numbers for people: sizes, counts, shares, times, values of a metric; and tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

GIB, MIB = 2**30, 2**20
NOTHING = "–"
SPANS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # seconds
SIZES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": MIB, "gib": GIB}


def byte_size(count: float) -> str:
    """Bytes: '24.0 MiB', '1,079.9 GiB'; never TiB, since device memory is given in GiB."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.1f} MiB"


def compact(value: float | None) -> str:
    """Three significant digits with k, M, B or T: 12345 -> 12.3k."""
    if value is None:
        return NOTHING
    suffixes = ["T", "B", "M", "k", ""]
    while abs(value) >= 999.5 and len(suffixes) > 1:
        value /= 1000
        suffixes.pop()
    return f"{value:.3g}{suffixes[-1]}"


def percent(value: float) -> str:
    """A share of 1 in percent."""
    return f"{value:.1%}" if math.isfinite(value) else f"{value}"


def counted(n: int, noun: str, plural: str = "") -> str:
    """'1 run', '2 runs'."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 0:01:23."""
    return str(timedelta(seconds=round(seconds)))


def duration(seconds: float | None) -> str:
    """Seconds in the fitting unit, with three digits: '41.2 s', '2.17 h'."""
    if seconds is None:
        return NOTHING
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def time_span(seconds: float) -> str:
    """Seconds in the two largest units: '41 s', '3 min 5 s', '2 h 10 min'."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds_left, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def read_amount(text: str, units: Mapping[str, float]) -> float:
    """Read a number with a unit: 7d, 1.5 GB. Raises ValueError with the units' names."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*", text, re.ASCII)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"a number and one of {', '.join(units)}")
    return float(match[1]) * units[match[2].lower()]


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row of cells, its columns below one another."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def p_value(value: float | None) -> str:
    """A p-value with two significant digits."""
    if value is None:
        return NOTHING
    return "<0.0001" if value < 1e-4 else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


@dataclass(frozen=True)
class Decimals:
    """Writes the values of one metric with enough decimals to show three digits of their spread."""

    places: int

    @classmethod
    def of(cls, spreads: Sequence[float], values: Sequence[float]) -> Decimals:
        """Choose decimals by the median deviation over seeds; without deviations by the range of
        the values, and without a range by the first value.
        """
        positive = sorted(spread for spread in spreads if spread > 0)
        size = positive[len(positive) // 2] if positive else max(values) - min(values)
        size = size or abs(values[0]) / 10 or 1.0
        return cls(min(max(2 - math.floor(math.log10(size)), 0), 12))

    def number(self, value: float | None, *, sign: str = "") -> str:
        """Write a value."""
        if value is None:
            return NOTHING
        text = f"{value:{sign},.{self.places}f}"
        return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text

    def signed(self, value: float | None) -> str:
        """Write a difference, with its sign."""
        return self.number(value, sign="+")

    def interval(self, low: float | None, high: float | None, *, sign: str = "") -> str:
        """Write both ends of an interval."""
        if low is None or high is None:
            return NOTHING
        return f"{self.number(low, sign=sign)} to {self.number(high, sign=sign)}"
