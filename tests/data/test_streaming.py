"""Text that is read while it trains: the same samples on any number of ranks and loader processes,
which a plain reading of the files confirms, and from any place on.
"""

from __future__ import annotations

import random
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section
from stream_helpers import (
    EOS,
    N_ROWS,
    SEQ,
    TEXTS,
    Text,
    closed,
    documents,
    ids,
    kept,
    loaders,
    rows,
    streamed,
)

from forge.config.data.mixture import Phase
from forge.config.data.text import HuggingFace
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.loader import TrainLoader
from forge.data.batches.mixture import Mixture, MixtureOrder
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import prepare_tokens
from forge.data.sources.hub_stream import divided
from forge.data.tokens.shards import IndexedStore, ShardWriter


@pytest.fixture(scope="module")
def text(folder: Path) -> Streamed:
    """In 4 parts of 3 row groups."""
    found = streamed(folder, stream_parts=4).train
    assert isinstance(found, Streamed)
    assert len(found.parts) == 4
    return found


def test_without_shuffling_tokens_are_those_of_the_files_one_behind_the_other(folder: Path) -> None:
    prepared = streamed(folder, stream_parts=1, shuffle_buffer=1)
    documents = kept(prepared, [text for file in TEXTS for text in file])
    assert 0 < len(documents) < sum(bool(text) for file in TEXTS for text in file)
    epoch = [token for text in documents for token in ids(text)]
    tokens = epoch * 3
    found = rows(loaders(prepared.train, 1), 2 * len(epoch) // SEQ // 12)
    assert len(found) * SEQ > 1.5 * len(epoch)
    assert found == [tokens[at : at + SEQ] for at in range(0, len(found) * SEQ, SEQ)]


def test_an_epoch_of_a_part_has_its_documents_once_in_shuffled_blocks(folder: Path) -> None:
    """Every part is read in blocks of 7 documents of its row groups, in another order each time."""
    prepared = streamed(folder, stream_parts=4)
    text = prepared.train
    assert isinstance(text, Streamed)
    units = [file[at : at + 10] for file in TEXTS for at in range(0, N_ROWS, 10)]
    samples = rows(loaders(text, 1), 60)
    assert sorted(unit for part in text.parts for unit in part) == list(range(12))
    for number, part in enumerate(text.parts):
        wanted = [kept(prepared, units[unit]) for unit in part]
        size = sum(len(ids(one)) for unit in wanted for one in unit)
        tokens = [token for sample in samples[number::4] for token in sample]
        assert len(tokens) > 2 * size
        epochs = [documents(tokens[at : at + size]) for at in (0, size)]
        assert epochs[0] != epochs[1]
        for epoch in epochs:
            assert sorted(epoch) == sorted(one for unit in wanted for one in unit)
            # row groups follow each other in some order, and a block is 7 documents of that
            orders = [[one for unit in order for one in unit] for order in permutations(wanted)]
            assert epoch not in orders
            assert any(blocks(epoch) == blocks(order) for order in orders)


def blocks(texts: list[str]) -> list[list[str]]:
    return [sorted(texts[at : at + 7]) for at in range(0, len(texts), 7)]


@pytest.mark.parametrize(
    ("ranks", "batch", "workers"),
    [
        (1, 12, 0),
        (2, 12, 0),
        (3, 12, 0),
        (4, 12, 0),
        (6, 6, 0),
        (2, 4, 0),
        (1, 4, 1),
        (3, 12, 2),
        (2, 6, 3),
    ],
)
def test_samples_are_the_same_on_any_ranks_and_loader_processes(
    text: Streamed, ranks: int, batch: int, workers: int
) -> None:
    found = loaders(text, ranks, batch=batch, workers=workers)
    assert rows(found, 4) == expected(text, 4)
    closed(found)


_EXPECTED: list[list[int]] = []


def expected(text: Streamed, steps: int) -> list[list[int]]:
    """What one rank reads without loader processes."""
    if not _EXPECTED:
        _EXPECTED.extend(rows(loaders(text, 1), 40))
    return _EXPECTED[: 12 * steps]


def test_seven_ranks_read_what_one_does(text: Streamed) -> None:
    def of(ranks: int) -> list[list[int]]:
        made = [
            TrainLoader(
                text,
                Text(),
                seq_len=SEQ,
                seed=5,
                batch_size=14 // ranks,
                num_ranks=ranks,
                rank=rank,  # type: ignore[abstract]
            )
            for rank in range(ranks)
        ]
        return rows(made, 5)

    assert of(7) == of(1)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_anywhere_on_any_number_of_ranks(text: Streamed, seed: int) -> None:
    """Three times after each other, from what checkpoints keep; in a later epoch too."""
    draw, state, done = random.Random(seed), None, 0
    for _ in range(4):
        ranks = draw.choice([1, 2, 3, 4, 6])
        batch = draw.choice([b for b in (1, 2, 3, 4, 6, 12) if b % ranks == 0])
        found = loaders(text, ranks, batch=batch, workers=2 if draw.random() < 0.15 else 0)
        for loader in found if state else ():
            loader.load_state_dict(state)  # type: ignore[arg-type]
        steps = draw.randint(1, 10)
        assert rows(found, steps) == expected(text, 40)[12 * done : 12 * (done + steps)]
        done += steps
        state = closed(found)
        assert state["samples"] == 12 * done


def test_an_old_position_is_read_forward_from(text: Streamed) -> None:
    """Also none at all: what a position says is only where to begin."""
    found = loaders(text, 1)
    rows(found, 9)
    state = closed(found)
    old = dict(state["streams"][""])
    rows(found, 6)
    state = closed(found)
    for at in (old, {"1": old["1"]}, {}):
        again = loaders(text, 1)
        again[0].load_state_dict(state | {"streams": {"": at}})
        assert rows(again, 2) == expected(text, 40)[12 * 15 : 12 * 17]


def test_a_rank_reads_only_the_parts_of_its_samples(text: Streamed) -> None:
    """Where the parts are a multiple of what all read at a time; then no row is read twice."""
    found = loaders(text, 4, batch=4)
    rows(found, 5)
    known = [set(loader.state_dict()["streams"][""]) for loader in found]
    assert known == [{"0"}, {"1"}, {"2"}, {"3"}]


def test_a_mixture_draws_from_a_stream_as_from_any_source(text: Streamed, tmp_path: Path) -> None:
    """In every sample the source that the order names, and of the stream its next."""
    writer = ShardWriter(tmp_path / "a", vocab_size=1 << 16)
    writer.append(np.arange(1000, 1401))
    writer.close(n_bytes=0, n_documents=0)
    phases = (Phase(weights=(0.6, 0.4)), Phase(start_step=3, weights=(0.1, 0.9)))
    mixture = Mixture(stores={"shards": IndexedStore(tmp_path / "a"), "text": text}, phases=phases)
    whole = rows(loaders(mixture, 1), 12)
    order = MixtureOrder([25, None], [(0, (0.6, 0.4)), (36, (0.1, 0.9))], seed=5)
    stream = iter(rows_of_stream(text, "5/1"))
    for sample, row in enumerate(whole):
        source, number = order.find(sample)
        if source:
            assert row == next(stream)
        else:
            assert row == [*range(1000 + SEQ * number, 1000 + SEQ * (number + 1))]
    for ranks, workers in ((2, 0), (3, 2)):
        found = loaders(mixture, ranks, workers=workers)
        assert rows(found, 5) == whole[:60]
        state = closed(found)
        again = loaders(mixture, 6 // ranks)
        for loader in again:
            loader.load_state_dict(state)
        assert rows(again, 7) == whole[60:]
        assert again[0].realised()["text"] == sum(row[0] < 1000 for row in whole)


def rows_of_stream(text: Streamed, seed: str) -> list[list[int]]:
    loader = TrainLoader(text, Text(), seq_len=SEQ, seed=seed, batch_size=12)  # type: ignore
    return rows([loader], 12)


def test_documents_are_kept_apart_and_counted_on_every_rank(text: Streamed) -> None:
    """Each rank counts the targets of all, for which it reads their samples too."""
    counts, whole = [], expected(text, 3)
    for ranks in (1, 3):
        found = [
            TrainLoader(
                text,
                Text(),
                seq_len=SEQ,
                seed=5,
                batch_size=12 // ranks,
                num_ranks=ranks,
                rank=rank,
                end_of_text=EOS,  # type: ignore[abstract]
            )
            for rank in range(ranks)
        ]
        for step in range(3):
            parts = [next(loader) for loader in found]
            tokens = [row for part in parts for row in part.batches[0]["tokens"].tolist()]
            assert tokens == whole[12 * step : 12 * step + 12]
            targets = sum(int((part.batches[0]["targets"] >= 0).sum()) for part in parts)
            assert {part.n_targets for part in parts} == {targets}
            counts.append(targets)
    assert counts[:3] == counts[3:]


def test_units_are_divided_into_parts_of_nearly_equal_size() -> None:
    assert divided([5] * 12, 4) == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))
    assert divided([10, 1], 8) == ((0, 1),)  # else the small file would be read ten times as often
    draw = random.Random(0)
    sizes = [draw.randint(50, 150) for _ in range(200)]
    parts = divided(sizes, 16)
    assert len(parts) == 16
    assert sorted(unit for part in parts for unit in part) == list(range(200))
    held = [sum(sizes[unit] for unit in part) for part in parts]
    assert max(held) <= 1.25 * min(held)


@pytest.mark.parametrize("ends", [True, False])
def test_documents_of_a_stream_begin_as_others_do(folder: Path, ends: bool) -> None:
    """Those that are held out too: the first is found whole behind each beginning."""
    begin = 257
    section = Bytes(add_bos=True, add_eos=ends)
    where: dict[str, Any] = {"path": str(folder), "cache_dir": f"{folder.parent}/cache"}
    found = prepare_tokens(
        HuggingFace(**where, hf_streaming=True, stream_parts=1), section, build=build_section
    )
    known = {tuple(text.encode()) + (EOS,) * ends for texts in TEXTS for text in texts}
    tokens = found.val.read(0, len(found.val)).tolist()
    loader = TrainLoader(
        found.train,
        Text(),  # type: ignore[abstract]
        seq_len=SEQ,
        seed=5,
        batch_size=1,
        grad_accum_steps=1,
    )
    for _ in range(40):
        tokens += next(loader).batches[0]["tokens"][0].tolist()
    loader.close()
    places = [place for place, token in enumerate(tokens) if token == begin]
    assert tokens[0] == begin
    whole = [tuple(tokens[a + 1 : b]) for a, b in pairwise(places)]
    assert sum(each in known for each in whole) >= len(whole) - 1, "one is cut between the two"
    assert len(whole) > 10
