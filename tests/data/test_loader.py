"""Loaders: the right windows, the same on any number of ranks and workers, exact to resume."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Step, TrainLoader, eval_batches
from forge.data.batches.order import permute
from forge.data.tokens.shards import IndexedStore, ShardWriter
from forge.objectives.pretrain import Pretrain

N_TOKENS, SEQ = 1000, 16
TEXT = Pretrain(PretrainConfig())
WINDOWS = (N_TOKENS - 1) // SEQ


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> IndexedStore:
    """Token i is i, so a window shows where it comes from."""
    directory = tmp_path_factory.mktemp("counting") / "store"
    writer = ShardWriter(directory, vocab_size=N_TOKENS, shard_tokens=333)
    writer.append(np.arange(N_TOKENS))
    writer.close(n_bytes=1, n_documents=1)
    return IndexedStore(directory)


def first_tokens(steps: Iterator[Step], count: int) -> list[list[int]]:
    """Where the windows of each of the next steps begin."""
    return [
        [int(row[0]) for batch in step.batches for row in batch["tokens"]]
        for step in islice(steps, count)
    ]


def test_a_batch_is_windows_in_permuted_order(counting) -> None:
    loader = TrainLoader(counting, TEXT, seq_len=SEQ, seed=3, batch_size=4, grad_accum_steps=2)
    step = next(loader)
    windows = permute(np.arange(8), WINDOWS, (3, 0)).reshape(2, 4)
    assert step.n_targets == 8 * SEQ
    for batch, starts in zip(step.batches, windows * SEQ, strict=True):
        expected = starts[:, None] + np.arange(SEQ + 1)
        assert batch["tokens"].dtype == batch["targets"].dtype == torch.int64
        assert np.array_equal(batch["tokens"].numpy(), expected[:, :-1])
        assert np.array_equal(batch["targets"].numpy(), expected[:, 1:])
        assert batch["tokens"].is_contiguous()
        assert batch["targets"].is_contiguous()


def test_an_epoch_has_every_target_once_and_the_next_another_order(counting) -> None:
    loader = TrainLoader(counting, TEXT, seq_len=SEQ, seed=0, batch_size=1)
    targets = torch.cat([next(loader).batches[0]["targets"].flatten() for _ in range(WINDOWS)])
    assert loader.epoch == 1.0
    assert sorted(targets.tolist()) == list(range(1, WINDOWS * SEQ + 1))
    again = torch.cat([next(loader).batches[0]["targets"].flatten() for _ in range(WINDOWS)])
    assert sorted(again.tolist()) == sorted(targets.tolist())
    assert again.tolist() != targets.tolist()


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1 << 40),
    batch_size=st.integers(1, 3),
    accum=st.integers(1, 3),
    start=st.integers(0, 500),
)
def test_any_number_of_ranks_draws_the_same_global_batch(
    counting, seed, batch_size, accum, start
) -> None:
    drawn = []
    options = {"seq_len": SEQ, "seed": seed, "batch_size": batch_size}
    for num_ranks in (1, 2, 4):
        # The global batch is 4 * batch_size * accum on each layout, cut differently.
        options |= {"num_ranks": num_ranks, "grad_accum_steps": accum * 4 // num_ranks}
        loaders = [TrainLoader(counting, TEXT, **options, rank=rank) for rank in range(num_ranks)]
        for loader in loaders:
            loader.load_state_dict({"samples": start})
        steps = [[next(loader) for loader in loaders] for _ in range(3)]
        targets = {step.n_targets for ranks in steps for step in ranks}
        assert targets == {4 * batch_size * accum * SEQ}
        found: list[int] = []
        for ranks in steps:
            for batches in zip(*(step.batches for step in ranks), strict=True):
                found += [token for batch in batches for token in batch["tokens"][:, 0].tolist()]
        drawn.append(found)
    assert drawn[0] == drawn[1] == drawn[2]
    samples = np.arange(start, start + 12 * batch_size * accum)
    expected = [
        int(permute(np.array([i % WINDOWS]), WINDOWS, (seed, i // WINDOWS))[0]) * SEQ
        for i in samples.tolist()
    ]
    assert drawn[0] == expected


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_change_nothing(counting, num_workers) -> None:
    options = {"seq_len": SEQ, "seed": 1, "batch_size": 3, "grad_accum_steps": 2}
    options |= {"num_ranks": 2, "rank": 1, "start_sample": 36}
    plain = TrainLoader(counting, TEXT, **options)
    processes = TrainLoader(counting, TEXT, **options, num_workers=num_workers, prefetch_factor=3)
    for _ in range(20):
        a, b = next(plain), next(processes)
        for x, y in zip(a.batches, b.batches, strict=True):
            assert torch.equal(x["tokens"], y["tokens"])
            assert torch.equal(x["targets"], y["targets"])
        assert plain.state_dict() == processes.state_dict()
    processes.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 13])
def test_resumed_in_the_middle_of_an_epoch(counting, num_workers, stop) -> None:
    options = {"seq_len": SEQ, "seed": 1, "batch_size": 5}
    whole = first_tokens(TrainLoader(counting, TEXT, **options), 20)
    loader = TrainLoader(counting, TEXT, **options, num_workers=num_workers)
    assert first_tokens(loader, stop) == whole[:stop]
    state = loader.state_dict()
    assert state == {"samples": 5 * stop}
    loader.close()
    resumed = TrainLoader(counting, TEXT, **options, num_workers=num_workers)
    next(resumed)
    resumed.load_state_dict(state)
    assert first_tokens(resumed, 20 - stop) == whole[stop:]
    resumed.close()


def test_overfitting_repeats_the_first_global_batches(counting) -> None:
    options = {"seq_len": SEQ, "seed": 1, "batch_size": 3, "grad_accum_steps": 2}
    whole = first_tokens(TrainLoader(counting, TEXT, **options), 2)
    loader = TrainLoader(counting, TEXT, **options, overfit_batches=2)
    assert first_tokens(loader, 7) == [whole[i % 2] for i in range(7)]
    assert loader.state_dict() == {"samples": 42}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pinned_batches(counting, num_workers) -> None:
    options = {"seq_len": SEQ, "seed": 1, "batch_size": 2, "num_workers": num_workers}
    loader = TrainLoader(counting, TEXT, **options, pin_memory=True)
    assert next(loader).batches[0]["tokens"].is_pinned()
    loader.close()


def test_message_when_the_split_is_shorter_than_a_sample(store) -> None:
    short = store(np.arange(16))
    with pytest.raises(ValueError) as caught:
        TrainLoader(short, TEXT, seq_len=16, seed=0, batch_size=1)
    assert str(caught.value) == (
        "train.seq_len = 16: the training split has 16 tokens, less than one sample of "
        "seq_len + 1. Set train.seq_len=15 or less, or give more text."
    )
    assert TrainLoader(short, TEXT, seq_len=15, seed=0, batch_size=1).samples_per_epoch == 1


@pytest.mark.parametrize("n_tokens", [2, 16, 17, 18, 170])
def test_evaluation_counts_every_target_once(store, n_tokens) -> None:
    tokens = np.arange(n_tokens)
    batches = list(eval_batches(store(tokens), TEXT, seq_len=SEQ, batch_size=4))
    targets = torch.cat([batch["targets"].flatten() for batch in batches])
    inputs = torch.cat([batch["tokens"].flatten() for batch in batches])
    counted = targets != IGNORE_INDEX
    assert targets[counted].tolist() == tokens[1:].tolist()
    assert inputs[counted].tolist() == tokens[:-1].tolist()
    assert counted.tolist() == sorted(counted.tolist(), reverse=True)
    assert all(batch["tokens"].shape[0] == 4 for batch in batches[:-1])
    assert batches[-1]["tokens"].shape[0] == -(-(n_tokens - 1) // SEQ) - 4 * (len(batches) - 1)


@pytest.mark.parametrize("sequences", [1, 7, 40, 99999])
def test_evaluation_of_a_few_sequences_is_spread_over_the_split(counting, sequences) -> None:
    """Whatever the batch and the shares: the same sequences, of the whole split, none twice."""
    every = eval_batches(counting, TEXT, seq_len=SEQ, batch_size=4)
    whole = torch.cat([batch["tokens"] for batch in every])
    wanted = min(sequences, len(whole))

    def sequences_of(batch_size: int, shares: int) -> list[list[int]]:
        rows: list[list[int]] = []
        options = {"seq_len": SEQ, "batch_size": batch_size, "sequences": sequences}
        for part in range(shares):
            for batch in eval_batches(counting, TEXT, **options, part=(part, shares)):
                rows += batch["tokens"][(batch["targets"] != IGNORE_INDEX).any(1)].tolist()
        return sorted(rows)

    found = sequences_of(4, 1)
    assert len(found) == wanted
    for batch_size, shares in ((1, 1), (3, 1), (2, 2), (1, 3)):
        assert sequences_of(batch_size, shares) == found
    places = sorted(whole.tolist().index(one) for one in found)
    gaps = np.diff([*places, len(whole)])
    assert places[0] == 0
    assert gaps.min() >= len(whole) // wanted
    assert gaps.max() <= -(-len(whole) // wanted)


def test_a_dropped_loader_ends_its_processes(counting) -> None:
    loader = TrainLoader(counting, TEXT, seq_len=SEQ, seed=0, batch_size=1, num_workers=2)
    next(loader)
    assert len(multiprocessing.active_children()) == 2
    start = time.perf_counter()
    del loader
    assert not multiprocessing.active_children()
    assert time.perf_counter() - start < 2
