"""Rows that grow: the tokens of each row of each step against a model of them in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_mixture import Text, store

from forge.config.data.batch_sizes import BatchSizes
from forge.config.data.seq_lens import SeqLens
from forge.data.batches.loader import TrainLoader
from forge.data.batches.micro_batches import in_rows_of

SEQ, LENGTHS, UNTIL = 12, (3, 6), (4, 9)
Rows = list[list[int]]


def loaded(text, ranks: int, start_step: int, steps: int, sizes: BatchSizes, **lens) -> list[Rows]:
    """The tokens and targets of all rows of each step, of all ranks in order."""
    loaders = [
        TrainLoader(
            text,
            Text(),  # type: ignore[abstract]
            seq_len=SEQ,
            seed=3,
            sizes=sizes,
            batch_size=4 // ranks,
            num_ranks=ranks,
            rank=rank,
            start_sample=sizes.samples(start_step),
            **lens,
        )
        for rank in range(ranks)
    ]
    found = []
    for _ in range(steps):
        parts = [next(loader) for loader in loaders]
        batches = zip(*(part.batches for part in parts), strict=True)
        rows = [torch.cat([b["tokens"], b["targets"]], 1) for batch in batches for b in batch]
        found.append(torch.cat(rows).tolist())
        places = sum(row.shape[0] * row.shape[1] // 2 for row in rows)
        assert {(part.n_tokens, part.n_places) for part in parts} == {(places, places)}
    return found


@pytest.mark.parametrize("grows", [False, True])
def test_each_step_reads_the_windows_of_a_run_without_stages_in_shorter_rows(
    grows: bool, tmp_path: Path
):
    """Token n of the text is n, so that a row says which it is. The batch may grow too."""
    text = store(tmp_path / "text", np.arange(1200))
    sizes = BatchSizes.growing(12, start=4, increment=4, samples=40) if grows else None
    sizes = sizes or BatchSizes.constant(8)
    lens = SeqLens(full=SEQ, sizes=sizes, lengths=LENGTHS, until=UNTIL)
    plain = loaded(text, 1, 0, 13, sizes)
    expected = []
    for step, rows in enumerate(plain):
        starts = np.array(rows)[:, 0]
        assert (np.array(rows)[:, :SEQ] == starts[:, None] + np.arange(SEQ)).all()
        length = 3 if step < 4 else 6 if step < 9 else 12
        starts = (starts[:, None] + np.arange(0, SEQ, length)).reshape(-1, 1)
        tokens = starts + np.arange(length)
        expected.append(np.concatenate([tokens, tokens + 1], 1).tolist())
    assert loaded(text, 1, 0, 13, sizes, seq_lens=lens) == expected
    for ranks in (2, 4):
        for done in (0, 3, 4, 5, 9):
            part = loaded(text, ranks, done, 13 - done, sizes, seq_lens=lens)
            assert part == expected[done:]


@settings(deadline=None)
@given(data=st.data())
def test_stages_of_batches_follow_the_tokens(data: st.DataObject):
    """Each step has the size of the stage that its first sample falls in."""
    number = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=number, max_size=number))
    until = sorted(data.draw(st.sets(st.integers(1, 300), min_size=number, max_size=number)))
    found = BatchSizes.staged(7, sizes, until)
    samples = 0
    for step in range(60):
        stage = next((n for n, end in enumerate(until) if samples < end), None)
        size = 7 if stage is None else sizes[stage]
        assert found.samples(step) == samples
        assert found.of_step_at(samples) == size
        assert found.whole_steps(samples) == found.whole_steps(samples + size - 1) == step
        samples += size


def test_other_fields_of_a_batch_are_cut_with_their_tokens():
    batch = {
        "tokens": torch.arange(16).view(2, 8),
        "documents": torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 1, 1]]),
        "sources": torch.tensor([[1, 0], [0, 1]]),
    }
    cut = in_rows_of(4, batch)
    assert cut["tokens"].tolist() == np.arange(16).reshape(4, 4).tolist()
    assert cut["documents"].tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert cut["sources"].tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    with pytest.raises(ValueError, match=r"train.seq_len_stages: the objective's labels \[2\]"):
        in_rows_of(4, {**batch, "labels": torch.zeros(2)})


def test_stages_beyond_the_end_of_a_run_are_left_out():
    lens = SeqLens(full=8, sizes=BatchSizes.constant(1), lengths=(2, 4), until=(3, 10))
    assert list(lens.stages(20)) == [(0, 3, 2), (3, 10, 4), (10, 20, 8)]
    assert list(lens.stages(5)) == [(0, 3, 2), (3, 5, 4)]
    assert list(SeqLens(full=8, sizes=BatchSizes.constant(1)).stages(5)) == [(0, 5, 8)]
