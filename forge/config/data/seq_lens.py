"""Tokens of the rows of each step: train.seq_len, or fewer in the first stages of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from forge.config.data.batch_sizes import BatchSizes


@dataclass(frozen=True, kw_only=True)
class SeqLens:
    """Lengths of rows. A sample stays a window of `full` tokens, read as full / length rows: the
    samples and the tokens of a step are those of a run without stages.

    lengths, until: of each stage before the last, and the step after its last one. sizes: samples
    of each step.
    """

    full: int
    sizes: BatchSizes
    lengths: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    def of_step(self, step: int) -> int:
        """Tokens of a row of an update, by its number from 0."""
        return (*self.lengths, self.full)[bisect_right(self.until, step)]

    def of_sample(self, sample: int) -> int:
        """Tokens of a row of the step with this sample."""
        return self.of_step(self.sizes.whole_steps(sample)) if self.lengths else self.full

    def stages(self, steps: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first step, step after the last, tokens of a row) of each stage of a run."""
        first = 0
        for length, end in zip((*self.lengths, self.full), (*self.until, steps), strict=True):
            if first < min(end, steps):
                yield first, min(end, steps), length
            first = max(first, end)
