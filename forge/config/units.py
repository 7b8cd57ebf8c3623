"""Large numbers as a reader wants them: sizes in memory, and counts."""

from __future__ import annotations

GIB, MIB = 2**30, 2**20


def byte_size(count: float) -> str:
    """Bytes: '24.0 MiB', '1,079.9 GiB'; never in TiB, so that what is needed stands beside the GiB
    that a device has.
    """
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.1f} MiB"


def compact(value: float) -> str:
    """Three significant digits with k, M, B or T: 12345 -> 12.3k."""
    suffixes = ["T", "B", "M", "k", ""]
    while abs(value) >= 999.5 and len(suffixes) > 1:
        value /= 1000
        suffixes.pop()
    return f"{value:.3g}{suffixes[-1]}"
