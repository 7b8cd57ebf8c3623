"""Rows of documents chosen from a buffer, as in nanochat: the largest one that fits comes next.

Where no buffered document fits, `crop` fills the row with the beginning of the shortest one and
drops its rest, so that every row is full; without `crop` the row ends there. Among documents of
equal length the first of the text is taken.
"""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np

LAST = (1 << 40) - 1
"""Largest number of a document: the low bits of a key."""


class BufferedFit:
    """Rows of at most `room` tokens, planned forward with `size` documents in memory."""

    def __init__(self, *, room: int, size: int, crop: bool, most: int = 0) -> None:
        """size: documents chosen among. most: documents of a row; 0 = any number."""
        self.room, self.size, self.crop, self.most = room, size, crop, most
        self.cropped = 0  # tokens dropped so far
        self._number, self._free, self._in_row = 0, room, 0
        # Sorted keys (length, reversed number): bisection finds the longest document up to a
        # length, and among equals the first. A list of 1,000 moves faster than a tree balances.
        self._keys: list[int] = []
        self._starts: dict[int, int] = {}  # first tokens of the buffered documents, by key
        self._pieces: list[tuple[int, int]] = []
        self._lengths: list[int] = []  # pieces of each complete row

    def add(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Read documents in order, and choose one whenever the buffer is full. starts, stops: first
        and past-the-end tokens, int64 [documents]. Without `crop` none is longer than a row.
        """
        keys, begin_of, size, number = self._keys, self._starts, self.size, self._number
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            key = ((stop - start) << 40) | (LAST - number)
            number += 1
            insort(keys, key)
            begin_of[key] = start
            if len(keys) >= size:
                self._choose()
        self._number = number

    def finish(self) -> None:
        """Empty the buffer. The last row may have fewer tokens than others."""
        while self._keys:
            self._choose()
        if self._in_row:
            self._end_row()

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Take the complete rows: pieces, int64 [pieces, 2], and the number of each row's pieces,
        int64 [rows].
        """
        number = sum(self._lengths)
        pieces = np.array(self._pieces[:number], dtype=np.int64).reshape(-1, 2)
        lengths = np.array(self._lengths, dtype=np.int64)
        self._pieces, self._lengths = self._pieces[number:], []
        return pieces, lengths

    def _choose(self) -> None:
        """Take one document from the buffer."""
        keys, free = self._keys, self._free
        place = bisect_right(keys, (free << 40) | LAST) - 1
        if place < 0 and not self.crop:
            self._end_row()
            free = self._free
            place = bisect_right(keys, (free << 40) | LAST) - 1
            assert place >= 0, (keys[0] >> 40, free)
        if place < 0:
            place = bisect_right(keys, keys[0] | LAST) - 1
        key = keys.pop(place)
        start, length = self._starts.pop(key), key >> 40
        if length > free:
            self.cropped += length - free
            length = free
        self._pieces.append((start, start + length))
        self._in_row, self._free = self._in_row + 1, free - length
        if not self._free or self._in_row == self.most:
            self._end_row()

    def _end_row(self) -> None:
        self._lengths.append(self._in_row)
        self._free, self._in_row = self.room, 0
