"""The merges of a byte-pair encoding, from the ranks of its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merges_of(ranks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List all pairs of entries joining to an entry, in the order of merging. ranks: of each entry,
    the least merged first.
    """
    pairs = []
    for entry, rank in ranks.items():
        for border in range(1, len(entry)):
            head, tail = entry[:border], entry[border:]
            if head in ranks and tail in ranks:
                pairs.append((rank, ranks[head], ranks[tail], head, tail))
    return [(head, tail) for *_, head, tail in sorted(pairs)]
