"""Rewards by the number of tokens of a completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forge.rewards.completion import Reward


class Length(Reward):
    """0 up to max_length - soft tokens, then falling in a line to -1 at max_length, and -1 beyond
    (DAPO, arXiv:2503.14476, equation 13); and -1 below min_length tokens.
    """

    def __init__(self, max_length: int, soft: int = 0, min_length: int = 0) -> None:
        self.max_length, self.soft, self.min_length = max_length, soft, min_length

    def faults(self) -> Iterator[tuple[str, str]]:
        if not 0 <= self.soft <= self.max_length:
            yield f"soft={self.soft} is not within max_length={self.max_length}.", "soft=0"
        if not 0 <= self.min_length <= self.max_length:
            message = f"min_length={self.min_length} is not within max_length={self.max_length}."
            yield message, "min_length=0"

    def __call__(self, completion_ids: Sequence[Sequence[int]]) -> list[float]:
        return [self._of(len(ids)) for ids in completion_ids]

    def _of(self, length: int) -> float:
        if length < self.min_length or length > self.max_length:
            return -1.0
        excess = length - (self.max_length - self.soft)
        return -excess / self.soft if excess > 0 else 0.0
