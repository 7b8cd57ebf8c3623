"""Samples: windows of a split, collated to batches by an objective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forge.data.tokens.store import COUNTS, LIKED, TokenStore, ends_of

Pieces = Sequence[tuple[int, int]]
"""Ranges of a split: the first token, and the past-the-end token."""


@dataclass(kw_only=True, slots=True)
class Sample:
    """A window of a split, or several pieces joined, read on demand. number: among the samples of a
    run, or of an evaluation, equal on any number of ranks.
    """

    store: TokenStore
    number: int
    pieces: Pieces

    @property
    def tokens(self) -> np.ndarray:
        """Unsigned integers [seq_len + 1], or fewer: at the end of a split, and for pieces. A
        single token has no target: such samples fill up the share of a rank with fewer than others.
        """
        return self._read(self.store)

    @property
    def counted(self) -> np.ndarray | None:
        """Mask of the tokens counting as targets, 0 or 1; None where all do."""
        marks = self._marks
        return None if marks is None else marks & COUNTS

    @property
    def liked(self) -> bool:
        """Whether the sample belongs to a desirable example."""
        marks = self._marks
        return marks is not None and bool((marks & LIKED).any())

    def ends(self, tokens: np.ndarray, end_of_text: int) -> np.ndarray:
        """Mask of the tokens ending a document. tokens: the sample's, to read only once."""
        return ends_of(tokens, self._marks, end_of_text)

    @property
    def _marks(self) -> np.ndarray | None:
        marks = self.store.counted
        return None if marks is None else self._read(marks)

    @property
    def rows(self) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens of each piece separately, and the mask of counting tokens."""
        store, marks = self.store, self.store.counted
        return [
            (store.read(a, b), None if marks is None else marks.read(a, b) & COUNTS)
            for a, b in self.pieces
        ]

    def _read(self, store: TokenStore) -> np.ndarray:
        parts = [store.read(start, stop) for start, stop in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Some samples in order, each found on its turn: the samples of all ranks are many.

    find: the store of a sample and its pieces, by number. masked: whether some tokens do not count
    as targets. end_of_text: the token ending a document, where documents are kept apart;
    null = a sample is one text. apart: whether each piece is a separate row. multiple: rows end
    with the longest row, rounded up to this multiple; 0 = at seq_len. packed: whether some samples
    have fewer tokens than others.
    """

    seq_len: int
    numbers: Sequence[int]
    find: Callable[[int], tuple[TokenStore, Pieces]]
    masked: bool
    end_of_text: int | None = None
    apart: bool = False
    multiple: int = 0
    packed: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        """Places of each row, at most seq_len, computed without reading any text."""
        if not self.multiple or not self.numbers:
            return self.seq_len
        longest = max(self._lengths()) - 1  # the last token is only a target
        return min(max(-(-longest // self.multiple), 1) * self.multiple, self.seq_len)

    @property
    def n_places(self) -> int:
        """Places of all rows, padding included."""
        return len(self._lengths()) * self.width

    @property
    def n_tokens(self) -> int:
        """Tokens of text read in all rows."""
        return sum(self._lengths()) - len(self._lengths())

    def _lengths(self) -> list[int]:
        """Tokens of each row, including the last, only a target."""
        pieces = [[b - a for a, b in self.find(number)[1]] for number in self.numbers]
        return (
            [n for lengths in pieces for n in lengths] if self.apart else [sum(p) for p in pieces]
        )

    def __iter__(self) -> Iterator[Sample]:
        for number in self.numbers:
            store, pieces = self.find(number)
            yield Sample(store=store, number=number, pieces=pieces)
