"""Requests for log-probabilities, in token ids, and how they share forward passes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import numpy as np


class Request(NamedTuple):
    """A continuation to score after a prefix of at least one token."""

    prefix: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens that a model reads for it: all but the last."""
        return len(self.prefix) + len(self.continuation) - 1

    @property
    def key(self) -> str:
        """Hash of the ids, in hex."""
        sizes = np.array([len(self.prefix), *self.prefix, *self.continuation], dtype=np.int64)
        return blake2b(sizes.tobytes(), digest_size=16).hexdigest()


@dataclass
class Reading:
    """Tokens read once, and the targets looked up in the predictions after them.

    targets: (place in the tokens, target id, index of the request). ends: of a tree of texts, for
    each token the index after the last token that sees it; None = one text.
    """

    tokens: tuple[int, ...]
    targets: list[tuple[int, int, int]] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    ends: tuple[int, ...] | None = None


def readings(requests: Sequence[Request]) -> list[Reading]:
    """The different token sequences to read, the longest first.

    Requests that read the same tokens share a reading: equal requests, and continuations of one
    token after one prefix, such as the letters of a multiple choice.
    """
    by_tokens: dict[tuple[int, ...], Reading] = {}
    for index, request in enumerate(requests):
        tokens = (*request.prefix, *request.continuation[:-1])
        reading = by_tokens.setdefault(tokens, Reading(tokens))
        reading.requests.append(index)
        begin = len(request.prefix) - 1
        for place, target in enumerate(request.continuation, begin):
            reading.targets.append((place, target, index))
    return sorted(by_tokens.values(), key=lambda reading: -len(reading.tokens))


class Round(NamedTuple):
    """Rows read at once by all ranks, `per_part` rows each; every row holds readings, in order."""

    width: int
    per_part: int
    rows: list[list[Reading]]

    @property
    def packed(self) -> bool:
        """Whether any row holds several readings."""
        return any(len(row) > 1 for row in self.rows)

    @property
    def branched(self) -> bool:
        """Whether any row holds a tree of texts."""
        return any(reading.ends is not None for row in self.rows for reading in row)


ROW = 256
"""Tokens of a row that short readings share: attention costs its square."""


def rounds(
    ordered: Sequence[Reading],
    *,
    longest: int,
    batch_tokens: int,
    parts: int = 1,
    multiple: int = 1,
    share: bool = True,
) -> list[Round]:
    """Lay readings, the longest first, into rows, and rows of nearly one length into rounds.

    longest: tokens of a row at most. batch_tokens: of a part and round. parts: of the batch, over
    ranks. multiple: of the width. share: whether readings may share a row.
    """
    rows = _filled(ordered, longest) if share else [[reading] for reading in ordered]
    rows.sort(key=_size, reverse=True)
    planned: list[Round] = []
    start = 0
    while start < len(rows):
        width = min(-(-_size(rows[start]) // multiple) * multiple, longest)
        some = rows[start : start + max(batch_tokens // width, 1) * parts]
        planned.append(Round(width, -(-len(some) // parts), some))
        start += len(some)
    return planned


def _filled(ordered: Sequence[Reading], longest: int) -> list[list[Reading]]:
    """Rows of `ROW` tokens, or of a longer reading: each reading goes into the fullest row with
    room for it, as in best-fit decreasing bin packing.
    """
    rows: list[list[Reading]] = []
    rooms: list[tuple[int, int]] = []  # free tokens and index of each row, the fullest first
    for reading in ordered:
        size = len(reading.tokens)
        place = bisect_left(rooms, (size, 0))
        if place < len(rooms):
            room, index = rooms.pop(place)
        else:
            room, index = max(min(ROW, longest), size), len(rows)
            rows.append([])
        rows[index].append(reading)
        insort(rooms, (room - size, index))
    return rows


def _size(row: Sequence[Reading]) -> int:
    return sum(len(reading.tokens) for reading in row)
