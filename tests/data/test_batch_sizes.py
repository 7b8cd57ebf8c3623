"""Batches that grow: the size of each step, and what loaders read at each."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture import Text, store

from forge.config.data.batch_sizes import BatchSizes
from forge.data.batches.loader import TrainLoader


@settings(deadline=None)
@given(
    start=st.integers(1, 40),
    increment=st.integers(1, 40),
    increments=st.integers(1, 6),
    samples=st.integers(1, 5000),
)
def test_the_sizes_are_those_of_the_formula(start, increment, increments, samples):
    """MaxText's rule, for each step by itself: (full - start) // increment sizes before the full
    one, each for ceil(samples an increment / size) steps.
    """
    full = start + increments * increment
    found = BatchSizes.growing(full, start=start, increment=increment, samples=samples)
    sizes, before = [], 0
    for n in range(increments):
        size = start + n * increment
        sizes += [size] * math.ceil(Fraction(samples, increments * size))
    assert (found.first, found.last, found.full_from) == (start, full, len(sizes))
    before = 0
    for step, size in enumerate([*sizes, full, full]):
        assert found.samples(step) == before
        assert found.of_step_at(before) == size
        assert found.steps(before) == step
        assert found.steps(before + size / 2) == step + 0.5
        before += size


def test_every_step_is_the_next_samples_on_any_ranks_and_after_a_resume(tmp_path: Path):
    """6, 12, 18, 24 sequences a step; 30 sequences at each size but the last."""
    text = store(tmp_path / "text", np.arange(4001))
    sizes = BatchSizes.growing(24, start=6, increment=6, samples=90)

    def steps(ranks: int, start: int, number: int) -> list[list[int]]:
        loaders = [
            TrainLoader(
                text,
                Text(),  # type: ignore[abstract]
                seq_len=4,
                seed=1,
                sizes=sizes,
                batch_size=6 // ranks,
                num_ranks=ranks,
                rank=rank,
                start_sample=start,
            )
            for rank in range(ranks)
        ]
        found = []
        for _ in range(number):
            parts = [next(loader) for loader in loaders]
            batches = zip(*(part.batches for part in parts), strict=True)
            rows = [one["tokens"][:, 0].tolist() for batch in batches for one in batch]
            found.append([*chain(*rows)])
            assert {part.n_targets for part in parts} == {4 * len(found[-1])}
        return found

    whole = steps(1, 0, 14)
    assert [len(rows) for rows in whole] == [6] * 5 + [12] * 3 + [18] * 2 + [24] * 4
    plain = TrainLoader(text, Text(), seq_len=4, seed=1, batch_size=6)  # type: ignore[abstract]
    in_order = [n for _ in range(33) for n in next(plain).batches[0]["tokens"][:, 0].tolist()]
    assert [*chain(*whole)] == in_order
    for ranks in (2, 3, 6):
        assert steps(ranks, 0, 14) == whole
        for done in (2, 6, 9, 11):
            assert steps(ranks, sizes.samples(done), 14 - done) == whole[done:]
