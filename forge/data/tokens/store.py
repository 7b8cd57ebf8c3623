"""Token stores: the interface read by loaders, and stores over mapped arrays."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

COUNTS, ENDS, GOES_ON, LIKED = 1, 2, 4, 8
"""Bits marking a token: counts as a target; ends a document; does not end a document, though an
end-of-text elsewhere; belongs to a desirable example.
"""
SAMPLE_BLOCKS = 64
SAMPLE_BLOCK_BYTES = 1 << 14


def ends_of(tokens: np.ndarray, marks: np.ndarray | None, end_of_text: int) -> np.ndarray:
    """Mask of the tokens ending a document: bool, of the shape of tokens."""
    ends = tokens == end_of_text
    return ends if marks is None else (ends & (marks & GOES_ON == 0)) | (marks & ENDS != 0)


class TokenStore(ABC):
    """The tokens of one split, in order; pickles without the tokens.

    counted: store of equal length with the marks of each token; None = all count as targets.
    together: number of documents in an example; 0 = running text. offsets: for examples, the start
    of each document and the end of the last, int64 [documents + 1].
    """

    counted: TokenStore | None = None
    together: int = 0

    @property
    def offsets(self) -> np.ndarray:
        raise NotImplementedError

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the tokens, in hex."""

    @property
    def stamp(self) -> str:
        """The fingerprint; for files hashed in samples, extended by their times of change."""
        return self.fingerprint

    @abstractmethod
    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop: [stop - start] of the store's integer type."""


class MappedStore(TokenStore):
    """Consecutive arrays, mostly maps of files, as one store."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        # Plain arrays over the maps: a slice of a np.memmap takes longer.
        self.parts = [np.asarray(part) for part in parts]
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop, a view where one part holds all of them."""
        assert 0 <= start < stop <= len(self), (start, stop, len(self))
        first = bisect_right(self._starts, start) - 1
        offset = self._starts[first]
        if stop <= self._starts[first + 1]:
            return self.parts[first][start - offset : stop - offset]
        parts = []
        for part, offset in zip(self.parts[first:], self._starts[first:], strict=False):
            if offset >= stop:
                break
            parts.append(part[max(start - offset, 0) : stop - offset])
        return np.concatenate(parts)


class Slice(TokenStore):
    """Tokens `start` to `stop` of another store."""

    def __init__(self, whole: TokenStore, start: int, stop: int) -> None:
        assert 0 <= start <= stop <= len(whole), (start, stop, len(whole))
        self.whole, self.start, self.stop = whole, start, stop
        if whole.counted is not None:
            self.counted = Slice(whole.counted, start, stop)

    def __len__(self) -> int:
        return self.stop - self.start

    @cached_property
    def fingerprint(self) -> str:
        return self._hash(self.whole.fingerprint)

    @property
    def stamp(self) -> str:
        return self._hash(self.whole.stamp)

    def _hash(self, of_whole: str) -> str:
        return hashlib.sha256(f"{of_whole} {self.start} {self.stop}".encode()).hexdigest()

    def read(self, start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= len(self), (start, stop, len(self))
        return self.whole.read(self.start + start, self.start + stop)


def sample_blocks(tokens: np.ndarray) -> Iterator[np.ndarray]:
    """64 blocks of 16 KiB, evenly spread over an array."""
    length = SAMPLE_BLOCK_BYTES // tokens.itemsize
    for start in np.linspace(0, max(len(tokens) - length, 0), SAMPLE_BLOCKS).astype(int):
        yield tokens[start : start + length]


def sample_hash(tokens: np.ndarray) -> str:
    """SHA-256 of the sample blocks, in hex."""
    digest = hashlib.sha256()
    for block in sample_blocks(tokens):
        digest.update(block.data)
    return digest.hexdigest()
