"""Samples: windows of a split, of which an objective makes its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from forge.data.tokens.store import COUNTS, LIKED, TokenStore, ends_of

Pieces = Sequence[tuple[int, int]]
"""Of a split: the number of the first token, and of the one behind the last."""


@dataclass(kw_only=True, slots=True)
class Sample:
    """A window of a split, or pieces of it one behind the other, read when asked for. number: among
    the samples of a run, or of an evaluation, on any number of ranks the same.
    """

    store: TokenStore
    number: int
    pieces: Pieces

    @property
    def tokens(self) -> np.ndarray:
        """Unsigned integers [seq_len + 1], or fewer: at the end of a split, and of pieces. A single
        one has no target: such samples fill up the share of a rank that has fewer than others.
        """
        return self._read(self.store)

    @property
    def counted(self) -> np.ndarray | None:
        """Whether each of the tokens counts as a target, 0 or 1; None where all do."""
        marks = self._marks
        return None if marks is None else marks & COUNTS

    @property
    def liked(self) -> bool:
        """Whether it is of an example that is desirable."""
        marks = self._marks
        return marks is not None and bool((marks & LIKED).any())

    def ends(self, tokens: np.ndarray, end_of_text: int) -> np.ndarray:
        """Whether a document ends with each of its tokens, which are read once."""
        return ends_of(tokens, self._marks, end_of_text)

    @property
    def _marks(self) -> np.ndarray | None:
        marks = self.store.counted
        return None if marks is None else self._read(marks)

    @property
    def rows(self) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens of each piece by itself, and whether they count."""
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
    """Some samples in order, each found when it is its turn: those of all ranks are many.

    find: the store of a sample and what it is made of there, by its number. masked: whether some
    tokens do not count as targets. end_of_text: the token that ends a document, where documents are
    to be kept apart; null = a sample is one text. apart: whether each piece is a row of its own.
    multiple: rows end with the longest of them, rounded up to a multiple of this; 0 = at seq_len.
    """

    seq_len: int
    numbers: Sequence[int]
    find: Callable[[int], tuple[TokenStore, Pieces]]
    masked: bool
    end_of_text: int | None = None
    apart: bool = False
    multiple: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def width(self) -> int:
        """Places of each row, at most seq_len, known without reading any text."""
        if not self.multiple or not self.numbers:
            return self.seq_len
        longest = max(self._lengths()) - 1  # the last token is only a target
        return min(max(-(-longest // self.multiple), 1) * self.multiple, self.seq_len)

    @property
    def n_places(self) -> int:
        """Places of all rows, those behind the text of each included."""
        return len(self._lengths()) * self.width

    @property
    def n_tokens(self) -> int:
        """Tokens of text that all rows read."""
        return sum(self._lengths()) - len(self._lengths())

    def _lengths(self) -> list[int]:
        """Tokens of each row, with the one that is only a target."""
        pieces = [[b - a for a, b in self.find(number)[1]] for number in self.numbers]
        return (
            [n for lengths in pieces for n in lengths] if self.apart else [sum(p) for p in pieces]
        )

    def __iter__(self) -> Iterator[Sample]:
        for number in self.numbers:
            store, pieces = self.find(number)
            yield Sample(store=store, number=number, pieces=pieces)
