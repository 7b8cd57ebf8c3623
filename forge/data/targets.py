"""How many sequences of a split have a token to learn, before any is read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forge.data.mixture import Mixture
from forge.data.packing import Plan
from forge.data.samples import Pieces
from forge.data.store import COUNTS, TokenStore
from forge.data.streams import Streamed

LOOKED_AT = 10_000
"""Sequences of a split, spread evenly over it: the marks of a large one are not read as a whole."""


class Empty(NamedTuple):
    """number: of sequences of a source that have no target, of the `looked_at`, of `all`."""

    source: str
    number: int
    looked_at: int
    all: int

    @property
    def share(self) -> float:
        return self.number / self.looked_at

    def said(self) -> str:
        """In words."""
        of = (
            f"{self.all:,}" if self.looked_at == self.all else f"{self.looked_at:,} of {self.all:,}"
        )
        of += f", of {self.source}," if self.source else ""
        have = "has" if self.number == 1 else "have"
        return f"{self.number:,} of the {of} sequences {have} no token to learn ({self.share:.1%})"


def without_targets(text: Mixture, seq_len: int) -> list[Empty]:
    """Of each source that marks what is learnt, and has sequences in which nothing is."""
    found = []
    for name, store in text.stores.items():
        if isinstance(store, Streamed) or store.counted is None:
            continue
        plan = text.plans.get(name)
        number = max((len(store) - 1) // seq_len, 0) if plan is None else len(plan)
        places = np.unique(np.linspace(0, number - 1, min(number, LOOKED_AT)).astype(np.int64))
        empty = sum(
            not _has_target(store.counted, _pieces(place, seq_len, plan))
            for place in places.tolist()
        )
        if empty:
            found.append(Empty(name, empty, len(places), number))
    return found


def _pieces(number: int, seq_len: int, plan: Plan | None) -> Pieces:
    if plan is not None:
        return plan.pieces_of(number)
    return [(number * seq_len, (number + 1) * seq_len + 1)]


def _has_target(marks: TokenStore, pieces: Pieces) -> bool:
    """Whether a token counts that has one before it in its piece."""
    return any(
        stop - start > 1 and bool((marks.read(start + 1, stop) & COUNTS).any())
        for start, stop in pieces
    )
