"""Counts of sequences with a token to learn, checked before training."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from forge.data.batches.examples import Examples
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import Plan
from forge.data.batches.samples import Pieces
from forge.data.batches.streams import Streamed
from forge.data.tokens.store import COUNTS, TokenStore

LOOKED_AT = 10_000
"""Sequences checked, spread evenly over a split: the marks of a large split are not all read."""


class Empty(NamedTuple):
    """number: of sequences of a source without a target, among the `looked_at`, of `all`."""

    source: str
    number: int
    looked_at: int
    all: int

    @property
    def share(self) -> float:
        return self.number / self.looked_at

    def said(self) -> str:
        """The counts in words."""
        total = (
            f"{self.all:,}" if self.looked_at == self.all else f"{self.looked_at:,} of {self.all:,}"
        )
        total += f", of {self.source}," if self.source else ""
        have = "has" if self.number == 1 else "have"
        return (
            f"{self.number:,} of the {total} sequences {have} no token to learn ({self.share:.1%})"
        )


def without_targets(text: Mixture, seq_len: int) -> list[Empty]:
    """Counts of each source with marks and with sequences without any target."""
    empties = []
    for name, store in text.stores.items():
        if isinstance(store, Streamed) or store.counted is None:
            continue
        plan = text.plans.get(name)
        number = max((len(store) - 1) // seq_len, 0) if plan is None else len(plan)
        has_target = partial(_has_target, store.counted, seq_len=seq_len, plan=plan)
        samples = np.unique(np.linspace(0, number - 1, min(number, LOOKED_AT)).astype(np.int64))
        empty = sum(not has_target(sample) for sample in samples.tolist())
        if empty == len(samples) < number and not any(map(has_target, range(number))):
            empty, samples = number, np.arange(number)
        if empty:
            empties.append(Empty(name, empty, len(samples), number))
    return empties


def check_targets(text: Mixture, too_long: str, seq_len: int) -> list[Empty]:
    """The sequences without targets of each source. too_long: data.too_long. ValueError: a source
    has no sequence, or no sequence of any source has a token to learn.
    """
    for name, plan in text.plans.items():
        if len(plan):
            continue
        whose = f" of data.sources.{name}" if name else ""
        fault, hint = f"no document{whose} has two tokens", "Look at data.path"
        if plan.left_out:
            kind = "examples" if isinstance(plan, Examples) else "documents"
            fault = (
                f"all {plan.left_out:,} {kind}{whose} are longer than train.seq_len = {seq_len:,}"
            )
            hint = "Set train.seq_len larger"
            if too_long == "truncate":
                fault += ", and what fits of them has no token to learn"
            elif too_long == "drop":
                hint += ", or data.too_long=truncate"
        raise ValueError(f"data.too_long={too_long}: nothing is left to train on: {fault}. {hint}.")
    empty = without_targets(text, seq_len)
    if sum(source.number == source.all for source in empty) == len(text.stores) > 0:
        number = sum(source.all for source in empty)
        fault = (
            f"none of its {number:,} sequences has a token to learn: all that is in them is masked"
        )
        hint = "`python -m forge.preview` with the same options shows what is read"
        raise ValueError(f"data.path: {fault}. Give responses to learn; {hint}.")
    return empty


def _pieces(number: int, seq_len: int, plan: Plan | None) -> Pieces:
    if plan is not None:
        return plan.pieces_of(number)
    return [(number * seq_len, (number + 1) * seq_len + 1)]


def _has_target(marks: TokenStore, number: int, *, seq_len: int, plan: Plan | None) -> bool:
    """Whether a counting token has a token before, in its piece of a sequence."""
    return any(
        stop - start > 1 and bool((marks.read(start + 1, stop) & COUNTS).any())
        for start, stop in _pieces(number, seq_len, plan)
    )
