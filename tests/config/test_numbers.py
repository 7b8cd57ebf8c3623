"""Large numbers as text: no exponents, and one unit for what is compared."""

from __future__ import annotations

import math

import pytest

from forge.config.numbers import byte_size, compact


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.0 MiB"),
        (155_000, "0.1 MiB"),
        (2**30 - 2**20, "1,023.0 MiB"),
        (2**30, "1.0 GiB"),
        (1_159_579_000_000, "1,079.9 GiB"),
    ],
)
def test_byte_size(count, text):
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12.3456, "12.3"),
        (999.4, "999"),
        (999.6, "1k"),
        (12345, "12.3k"),
        (1_234_567, "1.23M"),
        (5e9, "5B"),
        (7e12, "7T"),
        (math.nan, "nan"),
    ],
)
def test_compact(value, text):
    assert compact(value) == text
