"""Rows of whole documents of a stream, packed in the order of arrival.

A row takes documents until one finds no room, or the epoch ends (next fit). A document longer than
a row gives whole windows, each a row alone, as in `packing`. So the rows from any row on are a
pure function of the documents from the row's first document on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from forge.data.tokens.store import COUNTS


class Unreadable(ValueError):
    """Text unreadable in the middle of training, or without a sample."""


class Position(NamedTuple):
    """A document of a part, in the order of the run.

    epoch, block: its block, starting at row `row` of unit number `unit` of the epoch. document: its
    index in the permuted block. token: number of tokens of the part before the document; where
    whole documents are packed, number of samples before the first with a piece of the document.
    """

    epoch: int = 0
    block: int = 0
    unit: int = 0
    row: int = 0
    document: int = 0
    token: int = 0


class Tokens(NamedTuple):
    """Tokens, uint32 [tokens], and their marks, uint8 [tokens]; None = all tokens are targets.
    lengths: of the documents of an example, all its tokens; () = running text.
    """

    tokens: np.ndarray
    marks: np.ndarray | None
    lengths: tuple[int, ...] = ()

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The range of each document of an example; of running text the whole."""
        ends = [*accumulate(self.lengths or [len(self.tokens)])]
        return [*pairwise([0, *ends])]

    def cut(self, start: int, stop: int) -> Tokens:
        marks = None if self.marks is None else self.marks[start:stop]
        return Tokens(self.tokens[start:stop], marks)

    @staticmethod
    def joined(parts: list[Tokens]) -> Tokens:
        """Join parts in order: all with marks, or none."""
        if len(parts) == 1:
            return parts[0]
        marks = [part.marks for part in parts if part.marks is not None]
        tokens = np.concatenate([part.tokens for part in parts])
        return Tokens(tokens, np.concatenate(marks) if marks else None)


class Packing(NamedTuple):
    """policy, too_long: data.packing and data.too_long. most: documents of a row; 0 = any number.
    With concat_then_split there are no rows of documents: all text is cut at every seq_len.
    """

    policy: str = "concat_then_split"
    too_long: str = "split"
    most: int = 0

    @property
    def whole(self) -> bool:
        """Whether rows hold whole documents."""
        return self.policy != "concat_then_split"


class Rows:
    """The rows of one part of a stream, from a row on."""

    def __init__(
        self,
        documents: Iterator[tuple[Position, Tokens]],
        packing: Packing,
        *,
        seq_len: int,
        first: int,
        source: str,
    ) -> None:
        """documents: from the first document of row number `first` on. source: for messages."""
        self.packing, self.seq_len, self.source = packing, seq_len, source
        self.examples = False  # whether an example has been read
        self._made = self._rows(documents, first)
        self._held: deque[tuple[Position, Tokens]] = deque()
        self._first = first

    def row(self, number: int) -> Tokens:
        """The tokens of a row; invalid for released rows."""
        self._read_to(number)
        return self._held[number - self._first][1]

    def release(self, number: int) -> Position:
        """Forget all rows before a row, and return the position to read the row from."""
        self._read_to(number)
        while self._first < number:
            self._held.popleft()
            self._first += 1
        return self._held[0][0]

    def _read_to(self, number: int) -> None:
        assert number >= self._first, (number, self._first)
        while self._first + len(self._held) <= number:
            self._held.append(next(self._made))

    def _rows(
        self, documents: Iterator[tuple[Position, Tokens]], number: int
    ) -> Iterator[tuple[Position, Tokens]]:
        """Yield each row with its position. number: of the first row."""
        room, most = self.seq_len + 1, 1 if self.packing.policy == "none" else self.packing.most
        begin, row, size = Position(), [], 0
        epoch, read = -1, True  # read: whether the epoch may have given a piece
        for position, document in documents:
            if position.epoch != epoch:
                if row:
                    yield begin, Tokens.joined(row)
                    number, row, size = number + 1, [], 0
                self._check(read)
                epoch, read = position.epoch, position.block > 0 or position.document > 0
            for index, piece in enumerate(self._pieces(document)):
                length, read = len(piece.tokens), True
                if row and (size + length > room or len(row) == most):
                    yield begin, Tokens.joined(row)
                    number, row, size = number + 1, [], 0
                if not row:  # earlier pieces of the document are rows of their own
                    begin = position._replace(token=number - index)
                row.append(piece)
                size += length

    def _pieces(self, document: Tokens) -> Iterator[Tokens]:
        """Yield the pieces of a document, as `packing.plan_samples` cuts them."""
        if document.lengths:
            yield from self._example(document)
            return
        size, seq_len, too_long = len(document.tokens), self.seq_len, self.packing.too_long
        if size > seq_len + 1 and too_long != "split":
            if too_long == "refuse":
                fault = f"a document of {self.source} has {size:,} tokens, more than train.seq_len"
                hint = "Set train.seq_len larger, or data.too_long=truncate or drop"
                raise Unreadable(f"data.too_long = refuse: {fault} + 1. {hint}.")
            document = document.cut(0, seq_len + 1)
            learnt = document.marks is None or (document.marks[1:] & COUNTS).any()
            if too_long == "truncate" and learnt:
                yield document
            return
        for start in range(0, max(size - 1, 0), seq_len):
            yield document.cut(start, start + seq_len + 1)

    def _example(self, example: Tokens) -> Iterator[Tokens]:
        """Yield an example with its documents cut off at a row, or nothing, as `plan_examples`
        chooses.
        """
        self.examples = True
        room, too_long, longest = self.seq_len + 1, self.packing.too_long, max(example.lengths)
        if longest > room and too_long == "refuse":
            fault = f"an example of {self.source} has {longest:,} tokens, more than train.seq_len"
            hint = f"Set train.seq_len={longest - 1}, or data.too_long=truncate or drop"
            raise Unreadable(f"data.too_long=refuse: {fault} + 1. {hint}.")
        if min(example.lengths) < 2 or (longest > room and too_long == "drop"):
            return
        parts = [example.cut(start, min(stop, start + room)) for start, stop in example.pieces]
        for part, length in zip(parts, example.lengths, strict=True):
            assert part.marks is not None
            if length > room and not (part.marks[1:] & COUNTS).any():
                return
        yield Tokens.joined(parts)._replace(lengths=tuple(len(part.tokens) for part in parts))

    def _check(self, read: bool) -> None:
        """Raise Unreadable for a whole epoch without a piece."""
        if not read and self.examples:
            fault = f"every example of a part of {self.source} is left out"
            hint = "Give others, or set train.seq_len larger"
            raise Unreadable(f"data.too_long={self.packing.too_long}: {fault}. {hint}.")
        if not read:
            fault = f"every document of a part of {self.source} is left out"
            hint = "Set train.seq_len larger, or data.too_long=split"
            raise Unreadable(f"data.too_long={self.packing.too_long}: {fault}. {hint}.")
