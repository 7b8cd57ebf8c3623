"""Source and window of sample n of a run: a pure function, in constant memory.

In blocks of 1,024 samples source i has had floor(n C_i) - floor(n C_{i-1}) of the first n = 1,024 b
samples of a phase, C_i being the sum of the shares of sources 0 to i: at every edge of a block each
source is within one sample of its share. Inside a block the order is a keyed shuffle. Each source
is read in its own order, in epochs, through all phases.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

from forge.config.data.mixture import Phase
from forge.data.batches.examples import Examples
from forge.data.batches.order import SampleOrder, permute
from forge.data.batches.packing import Plan
from forge.data.batches.streams import Streamed
from forge.data.tokens.store import TokenStore

BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Sources by name, and the share of samples of each from a given update on.

    One source alone, without a name, has all samples. phases: in order, the first from update 0.
    plans: of the samples of sources not cut at every seq_len.
    """

    stores: Mapping[str, TokenStore | Streamed]
    phases: tuple[Phase, ...] = ()
    plans: Mapping[str, Plan] = field(default_factory=dict)

    @classmethod
    def of(cls, text: TokenStore | Streamed | Mixture) -> Mixture:
        return text if isinstance(text, Mixture) else cls(stores={"": text})

    @cached_property
    def masked(self) -> bool:
        return any(
            store.masked if isinstance(store, Streamed) else store.counted is not None
            for store in self.stores.values()
        )

    @cached_property
    def packed(self) -> bool:
        """Whether samples of some source have fewer tokens than others."""
        streams = (store for store in self.stores.values() if isinstance(store, Streamed))
        return bool(self.plans) or any(store.packing.whole for store in streams)

    @cached_property
    def apart(self) -> bool:
        """Whether each piece of a sample is a row: those of examples."""
        plans = (isinstance(plan, Examples) for plan in self.plans.values())
        return any(plans) or any(
            isinstance(store, Streamed) and store.together for store in self.stores.values()
        )


class MixtureOrder:
    """Source and window of each sample, fast for forward reading."""

    def __init__(
        self,
        windows: Sequence[int | None],
        phases: Sequence[tuple[int, Sequence[float]]],
        *,
        seed: int,
        shuffle: bool = True,
    ) -> None:
        """windows: of each source, None for a stream, read in its own order. phases: (first sample,
        weights of the sources) each, the first from sample 0. shuffle: whether the windows of a
        source are permuted.
        """
        self.seed = seed
        self.starts = [start for start, _ in phases]
        assert self.starts == sorted({0, *self.starts}), self.starts
        self.bounds = [_cumulated(weights) for _, weights in phases]
        # A single source keeps its order without a mixture.
        alone = len(windows) == 1
        self.seeds = [seed if alone else f"{seed}/{source}" for source in range(len(windows))]
        self.orders = [
            SampleOrder(n, seed=key if shuffle else None) if n is not None else None
            for n, key in zip(windows, self.seeds, strict=True)
        ]
        self._drawn = [[0] * len(windows)]  # of each source, before each phase
        self._block: tuple[int, int] | None = None
        self._sources: list[int] = []
        self._numbers: list[int] = []

    def find(self, sample: int) -> tuple[int, int]:
        """(source, window) of a sample; for a stream the number of its earlier samples in place of
        a window.
        """
        source, number = self.draw(sample) if len(self.orders) > 1 else (0, sample)
        order = self.orders[source]
        return source, number if order is None else order.window(number)

    def draw(self, sample: int) -> tuple[int, int]:
        """(source, number of the source's earlier samples) of a sample."""
        phase = bisect_right(self.starts, sample) - 1
        block, offset = divmod(sample - self.starts[phase], BLOCK)
        if self._block != (phase, block):
            counts = self._before(phase, block)
            labels = self._labels(phase, block)
            ranks = np.empty(BLOCK, dtype=np.int64)
            for source, first in enumerate(counts):
                where = labels == source
                ranks[where] = np.arange(first, first + int(where.sum()))
            self._sources, self._numbers = labels.tolist(), ranks.tolist()
            self._block = (phase, block)
        return self._sources[offset], self._numbers[offset]

    def drawn(self, sample: int) -> list[int]:
        """Number of samples of each source before `sample`."""
        phase = bisect_right(self.starts, sample) - 1
        return self._after(phase, sample - self.starts[phase])

    def _after(self, phase: int, samples: int) -> list[int]:
        """Number of samples of each source in the run after the first `samples` of a phase."""
        block, offset = divmod(samples, BLOCK)
        part = np.bincount(self._labels(phase, block)[:offset], minlength=len(self.orders))
        return [a + int(b) for a, b in zip(self._before(phase, block), part, strict=True)]

    def _before(self, phase: int, block: int) -> list[int]:
        """Number of samples of each source before a block of a phase."""
        for last in range(len(self._drawn) - 1, phase):
            self._drawn.append(self._after(last, self.starts[last + 1] - self.starts[last]))
        counts = _counts(self.bounds[phase], block * BLOCK)
        return [a + b for a, b in zip(self._drawn[phase], counts, strict=True)]

    def _labels(self, phase: int, block: int) -> np.ndarray:
        """The sources of a block's samples, in order."""
        edges = (_counts(self.bounds[phase], (block + step) * BLOCK) for step in (0, 1))
        start_counts, stop_counts = edges
        counts = np.subtract(stop_counts, start_counts)
        labels = np.repeat(np.arange(len(counts)), counts)
        return labels[permute(np.arange(BLOCK), BLOCK, (f"{self.seed}/mixture/{phase}", block))]


def _cumulated(weights: Sequence[float]) -> list[Fraction]:
    total, bounds = sum(map(Fraction, weights)), [Fraction(0)]
    for weight in weights:
        bounds.append(bounds[-1] + Fraction(weight) / total)
    return bounds


def _counts(bounds: Sequence[Fraction], samples: int) -> list[int]:
    """Number of samples of each source among the first `samples` of a phase."""
    floors = [int(samples * bound) for bound in bounds]
    return [high - low for low, high in pairwise(floors)]
