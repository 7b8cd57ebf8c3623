"""Sequences of each step: a constant over a run, or growing in stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchSizes:
    """Sequences a step over all ranks, in stages of (first step, first sample, size)."""

    stages: tuple[tuple[int, int, int], ...]

    @classmethod
    def constant(cls, size: int) -> BatchSizes:
        return cls(((0, 0, size),))

    @classmethod
    def growing(cls, size: int, *, start: int, increment: int, samples: int) -> BatchSizes:
        """Grow from `start` by `increment` to `size`, over `samples` sequences; every stage before
        the last has an equal share of `samples`, in whole steps.
        """
        stages, step, sample = [], 0, 0
        increments = (size - start) // increment
        for smaller in range(start, size, increment):
            stages.append((step, sample, smaller))
            steps = -(-samples // (increments * smaller))
            step, sample = step + steps, sample + steps * smaller
        return cls((*stages, (step, sample, size)))

    @classmethod
    def staged(cls, size: int, sizes: Sequence[int], until: Sequence[int]) -> BatchSizes:
        """Steps of `sizes` up to these numbers of samples, in whole steps, then of `size`."""
        stages, step, sample = [], 0, 0
        for smaller, end in zip(sizes, until, strict=False):
            stages.append((step, sample, smaller))
            steps = max(-(-(end - sample) // max(smaller, 1)), 0)
            step, sample = step + steps, sample + steps * smaller
        return cls((*stages, (step, sample, size)))

    @property
    def first(self) -> int:
        return self.stages[0][2]

    @property
    def last(self) -> int:
        return self.stages[-1][2]

    @property
    def full_from(self) -> int:
        """The first step of full size."""
        return self.stages[-1][0]

    def of_step_at(self, sample: int) -> int:
        """Sequences of the step with this first sample."""
        return self.stages[self._stage(1, sample)][2]

    def samples(self, steps: int) -> int:
        """Samples of the first steps."""
        step, sample, size = self.stages[self._stage(0, steps)]
        return sample + (steps - step) * size

    def steps(self, samples: float) -> float:
        """Steps for this many samples, the last step in part."""
        step, sample, size = self.stages[self._stage(1, samples)]
        return step + (samples - sample) / size

    def whole_steps(self, samples: int) -> int:
        """Whole steps in this many samples."""
        step, sample, size = self.stages[self._stage(1, samples)]
        return step + (samples - sample) // size

    def _stage(self, field: int, value: float) -> int:
        return bisect_right(self.stages, value, key=lambda stage: stage[field]) - 1
