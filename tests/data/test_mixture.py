"""Which sample of which source: shares, phases, epochs, and the same on any number of ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from forge.config.data.mixture import Mix, Phase
from forge.data.batches.loader import TrainLoader
from forge.data.batches.mixture import BLOCK, Mixture, MixtureOrder
from forge.data.batches.order import SampleOrder
from forge.data.tokens.joined import Joined
from forge.data.tokens.shards import IndexedStore, ShardWriter
from forge.data.tokens.store import TokenStore
from forge.objectives.next_token import NextToken

SEQ = 4


class Text(NextToken):
    def __init__(self) -> None:
        pass


def store(folder: Path, tokens: np.ndarray, counted: np.ndarray | None = None) -> TokenStore:
    writer = ShardWriter(folder, vocab_size=1 << 16)
    writer.append(tokens)
    writer.close(n_bytes=0, n_documents=0)
    if counted is not None:
        mask = ShardWriter(folder / "counted", dtype="u1")
        mask.append(counted)
        mask.close(n_bytes=0, n_documents=0)
    return IndexedStore(folder)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shares_are_within_one_sample_at_every_edge_of_a_block(seed):
    """Of random weights and phases, by counting draws; sources continue in their epochs."""
    random = np.random.default_rng(seed)
    sources = int(random.integers(2, 6))
    starts = np.unique(np.concatenate([[0], random.integers(1, 9 * BLOCK, 3)])).tolist()
    phases = [(start, random.random(sources) + 0.01) for start in starts]
    phases[-1][1][0] = 0.0
    order = MixtureOrder([7 + 3 * n for n in range(sources)], phases, seed=seed)
    drawn: Counter[int] = Counter()
    for sample in range(10 * BLOCK):
        phase = bisect_right(starts, sample) - 1
        if sample == starts[phase]:
            before = Counter(drawn)
        if (sample - starts[phase]) % BLOCK == 0:
            weights = phases[phase][1]
            for source in range(sources):
                share = weights[source] / weights.sum() * (sample - starts[phase])
                assert abs(drawn[source] - before[source] - share) < 1 + 1e-6
        source, number = order.draw(sample)
        assert number == drawn[source]
        drawn[source] += 1
    assert order.drawn(10 * BLOCK) == [drawn[source] for source in range(sources)]


def test_any_sample_is_found_without_those_before_it():
    """A reader that begins at a random place, in any phase, finds what one from 0 finds."""
    phases = [(0, [1.0, 3.0]), (700, [1.0, 0.0]), (3000, [0.25, 0.25])]
    whole = MixtureOrder([11, 5], phases, seed=7)
    expected = [whole.find(sample) for sample in range(6000)]
    for sample in np.random.default_rng(0).integers(0, 6000, 60).tolist():
        assert MixtureOrder([11, 5], phases, seed=7).find(sample) == expected[sample]


def test_each_epoch_of_a_source_has_each_of_its_windows_once():
    order = MixtureOrder([10, 33], [(0, [0.3, 0.7]), (500, [0.9, 0.1])], seed=1)
    windows: dict[int, list[int]] = {0: [], 1: []}
    for sample in range(2000):
        source, window = order.find(sample)
        windows[source].append(window)
    for source, n in ((0, 10), (1, 33)):
        epochs = [windows[source][at : at + n] for at in range(0, len(windows[source]), n)]
        assert all(sorted(epoch) == list(range(n)) for epoch in epochs[:-1])
        assert len(epochs) > 2
        assert epochs[0] != epochs[1]


def test_a_source_alone_has_the_order_that_it_has_without_a_mixture():
    alone, plain = MixtureOrder([50], [(0, [1.0])], seed=3), SampleOrder(50, seed=3)
    assert [alone.find(n) for n in range(200)] == [(0, plain.window(n)) for n in range(200)]


@pytest.fixture
def mixture(tmp_path: Path) -> Mixture:
    """Tokens that say which source and place they are of; the second masks every other token."""
    first = store(tmp_path / "a", np.arange(101))
    second = store(tmp_path / "b", 1000 + np.arange(61), np.arange(61) % 2)
    phases = (Phase(weights=(0.75, 0.25)), Phase(start_step=5, weights=(0.2, 0.8)))
    return Mixture(stores={"a": first, "b": second}, phases=phases)


@pytest.mark.ci("1-0", "4-1", "3-2", "7-3")
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7])
def test_the_global_batch_is_the_same_on_any_number_of_ranks(mixture, num_ranks, num_workers):
    """84 samples a step, over an edge of a phase; and after a resume in the middle of one."""
    options = {"seq_len": SEQ, "seed": 5}

    def steps(ranks: int, start: int, number: int, workers: int = 0) -> list[tuple]:
        loaders = [
            TrainLoader(
                mixture,
                Text(),  # type: ignore[abstract]
                **options,
                batch_size=84 // ranks,
                num_ranks=ranks,
                rank=rank,
                start_sample=84 * start,
                num_workers=workers,
            )
            for rank in range(ranks)
        ]
        found = []
        for _ in range(number):
            parts = [next(loader) for loader in loaders]
            assert len({part.n_targets for part in parts}) == 1
            rows = np.concatenate([part.batches[0]["tokens"].numpy() for part in parts])
            targets = np.concatenate([part.batches[0]["targets"].numpy() for part in parts])
            assert (targets >= 0).sum() == parts[0].n_targets
            found.append((rows.tolist(), targets.tolist()))
        for loader in loaders:
            loader.close()
        return found

    whole = steps(1, 0, 12)
    assert steps(num_ranks, 0, 12, num_workers) == whole
    assert steps(num_ranks, 7, 5, num_workers) == whole[7:]
    of_b = [sum(row[0] >= 1000 for row in rows) for rows, _ in whole]
    loader = TrainLoader(mixture, Text(), **options, batch_size=84)  # type: ignore[abstract]
    for _ in range(12):
        next(loader)
    assert loader.realised() == {"a": 12 * 84 - sum(of_b), "b": sum(of_b)}
    assert sum(of_b[:5]) < 0.3 * 5 * 84
    assert sum(of_b[5:]) > 0.75 * 7 * 84


def test_what_is_read_again_is_counted_again(mixture):
    loader = TrainLoader(mixture, Text(), seq_len=SEQ, seed=5, batch_size=6, overfit_batches=2)  # type: ignore[abstract]
    of_b = 0
    for _ in range(5):
        of_b += int((next(loader).batches[0]["tokens"][:, 0] >= 1000).sum())
    assert loader.realised() == {"a": 30 - of_b, "b": of_b}


def test_a_source_that_is_shorter_than_a_sample_is_named(mixture):
    with pytest.raises(ValueError, match=r"split of data\.sources\.b has 61 tokens, less than"):
        TrainLoader(mixture, Text(), seq_len=61, seed=0, batch_size=1)  # type: ignore[abstract]


def test_stores_that_are_joined_read_as_one(mixture):
    joined = Joined(tuple(mixture.stores.values()))
    tokens = np.concatenate([np.arange(101), 1000 + np.arange(61)])
    counted = np.concatenate([np.ones(101), np.arange(61) % 2])
    assert len(joined) == 162
    assert joined.counted is not None
    for start, stop in ((0, 162), (0, 101), (100, 102), (101, 162), (99, 101), (161, 162)):
        assert joined.read(start, stop).tolist() == tokens[start:stop].tolist()
        assert joined.counted.read(start, stop).tolist() == counted[start:stop].tolist()


def test_shares_follow_weights_and_temperature():
    """p_i = w_i^(1/T) / sum; a phase replaces weights by name, and annealing is one phase."""
    sources = {"a": {"path": "x", "weight": 8.0}, "b": {"path": "y"}, "c": {"path": "z"}}
    mix = Mix(sources=sources, mix_temperature=3.0)
    assert mix.schedule()[0].weights == pytest.approx((0.5, 0.25, 0.25))
    later = {"start_step": 9, "dataset_weights": {"b": 27.0, "c": 0}, "lr_scale": 0.5}
    mix = Mix(sources=sources, mix_temperature=3.0, phases={"later": later})
    first, second = mix.schedule()
    assert (first.start_step, second.start_step, second.lr_scale) == (0, 9, 0.5)
    assert second.weights == pytest.approx((0.4, 0.6, 0.0))
    annealed = Mix(sources=sources, anneal_start_step=9, anneal_weights={"b": 27.0, "c": 0})
    same = Mix(sources=sources, phases={"x": {**later, "lr_scale": 1.0}})
    assert annealed.schedule() == same.schedule()
    shares = [Fraction(w) for w in annealed.schedule()[1].weights]
    assert float(sum(shares)) == pytest.approx(1.0)


def test_unshuffled_sources_are_read_in_their_own_order_by_the_same_shares():
    weights = [(0, [0.5, 0.25, 0.25])]
    plain = MixtureOrder([7, 11, 300], weights, seed=3, shuffle=False)
    shuffled = MixtureOrder([7, 11, 300], weights, seed=3)
    found = [plain.find(n) for n in range(BLOCK)]
    assert [source for source, _ in found] == [shuffled.find(n)[0] for n in range(BLOCK)]
    for source, windows in enumerate([7, 11, 300]):
        read = [window for of, window in found if of == source]
        assert read == [n % windows for n in range(len(read))]
