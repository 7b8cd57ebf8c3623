"""The merges of a byte-pair encoding, of a vocabulary that says only in which order they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merges_of(ranks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """ranks: of each entry, the least of which is merged first. All pairs of entries that are one
    together, in the order in which they are merged.
    """
    found = []
    for whole, rank in ranks.items():
        for border in range(1, len(whole)):
            left, right = whole[:border], whole[border:]
            if left in ranks and right in ranks:
                found.append((rank, ranks[left], ranks[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]
