"""Samples: windows of a split, of which an objective makes its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forge.data.store import TokenStore


@dataclass(kw_only=True, slots=True)
class Sample:
    """A window of a split, read when asked for. number: among the samples of a run, or of an
    evaluation, on any number of ranks the same.
    """

    store: TokenStore
    number: int
    start: int
    stop: int

    @property
    def tokens(self) -> np.ndarray:
        """Unsigned integers [seq_len + 1]; at the end of a split fewer. A single one has no target:
        such samples fill up the share of a rank that has fewer than others.
        """
        return self.store.read(self.start, self.stop)

    @property
    def counted(self) -> np.ndarray | None:
        """Whether each of the tokens counts as a target, 0 or 1; None where all do."""
        counted = self.store.counted
        return None if counted is None else counted.read(self.start, self.stop)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Some samples in order, each found when it is its turn: those of all ranks are many.

    start_of: the first token of a sample, by its number. end_of_text: the token that ends a
    document, where documents are to be kept apart; null = a sample is one text.
    """

    store: TokenStore
    seq_len: int
    numbers: Sequence[int]
    start_of: Callable[[int], int]
    end_of_text: int | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Sample]:
        end = len(self.store)
        for number in self.numbers:
            start = self.start_of(number)
            stop = min(start + self.seq_len + 1, end)
            yield Sample(store=self.store, number=number, start=start, stop=stop)

    @property
    def masked(self) -> bool:
        """Whether some tokens do not count as targets."""
        return self.store.counted is not None
