"""Readings that begin alike, joined: the shared beginning is read once.

The tokens of a tree stand in one row, each text after the beginning it shares with the text
before it. So few-shot examples are read once for many questions, and a question once for all its
choices. A mask keeps the texts apart, so the scores are those of each text alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from forge.evaluation.requests import Reading

WIDTH = 2048
"""Tokens of a row whose attention costs as much as the products with the weights: 6 * model.dim, of
a small model. It decides how far trees grow.
"""


class Tree:
    """Texts in lexical order, each after its beginning.

    ends: for each token, the index after the last token that sees it; see
    `forge.models.documents.branches_and_masks`.
    """

    def __init__(self, first: Reading) -> None:
        self.tokens: list[int] = []
        self.ends: list[int] = []
        self.path: list[int] = []  # indices of the newest text's tokens
        self.reading = Reading(())
        self.longest = 0
        self.add(first, 0)

    def saves(self, reading: Reading, shared: int, most: int) -> bool:
        """Whether a text costs less here than alone, in a tree of at most `most` tokens.

        The beginning is read once for each tree, and attention costs the square of a tree's
        tokens: the mean cost of a text is least near the root of their product.
        """
        size, length = len(self.tokens), len(reading.tokens)
        new = length - shared
        longest = max(self.longest, length)
        if size + new > min(most, longest + isqrt(longest * (WIDTH + longest))):
            return False
        return new * (WIDTH + 2 * size + new) < length * (WIDTH + length)

    def add(self, reading: Reading, shared: int) -> None:
        """Add a text that begins with `shared` tokens of the newest text."""
        size = len(self.tokens)
        for index in self.path[shared:]:
            self.ends[index] = size
        new = reading.tokens[shared:]
        self.path[shared:] = range(size, size + len(new))
        self.tokens += new
        self.ends += [0] * len(new)
        self.longest = max(self.longest, len(reading.tokens))
        self.reading.requests += reading.requests
        self.reading.targets += [
            (self.path[at], target, index) for at, target, index in reading.targets
        ]

    def finished(self) -> Reading:
        """The tree as one reading."""
        for index in self.path:
            self.ends[index] = len(self.tokens)
        self.reading.tokens = tuple(self.tokens)
        if min(self.ends) < len(self.tokens):
            self.reading.ends = tuple(self.ends)
        return self.reading


def joined_by_beginning(readings: Sequence[Reading], most: int) -> list[Reading]:
    """Join readings that begin alike where that costs less, the longest first.

    most: tokens of a tree, unless one text is longer.
    """
    trees: list[Tree] = []
    before: tuple[int, ...] = ()
    for reading in sorted(readings, key=lambda reading: reading.tokens):
        shared = _shared(before, reading.tokens)
        if trees and shared and trees[-1].saves(reading, shared, most):
            trees[-1].add(reading, shared)
        else:
            trees.append(Tree(reading))
        before = reading.tokens
    return sorted((tree.finished() for tree in trees), key=lambda reading: -len(reading.tokens))


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Number of tokens that both begin with."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
