"""Token stores: what is written is read, and damage is found."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from forge.data.tokens import shards
from forge.data.tokens.shards import BrokenStore, IndexedStore, ShardWriter


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, "<u2"), (65537, "<u4")])
def test_the_smallest_type_that_holds_the_vocabulary(store, vocab_size, dtype) -> None:
    made = store([0, vocab_size - 1], vocab_size=vocab_size)
    assert made.index.dtype == dtype
    assert made.read(0, 2).tolist() == [0, vocab_size - 1]


def test_every_range_reads_the_same_over_shards(store) -> None:
    tokens = np.random.default_rng(0).integers(0, 65536, 50)
    made = store(tokens, shard_tokens=7)
    assert [shard.n_tokens for shard in made.index.shards] == [7] * 7 + [1]
    for start in range(50):
        for stop in range(start + 1, 51):
            assert np.array_equal(made.read(start, stop), tokens[start:stop])


def test_pieces_of_any_size_make_the_same_store(tmp_path) -> None:
    tokens = np.arange(100)
    stores = []
    for size in (1, 9, 100):
        writer = ShardWriter(tmp_path / str(size), vocab_size=100, shard_tokens=33)
        for start in range(0, 100, size):
            writer.append(tokens[start : start + size])
        writer.close(n_bytes=1, n_documents=1)
        stores.append(IndexedStore(tmp_path / str(size)))
    assert len({made.fingerprint for made in stores}) == 1
    assert np.array_equal(stores[0].read(0, 100), tokens)


def test_a_store_pickles_as_its_path(store) -> None:
    made = store(np.arange(60_000))
    pickled = pickle.dumps(made)
    assert len(pickled) < 1000
    assert np.array_equal(pickle.loads(pickled).read(5, 500), np.arange(5, 500))


def test_tokens_cannot_be_written_through_a_store(store) -> None:
    with pytest.raises(ValueError, match="read-only"):
        store(np.arange(10)).read(0, 5)[0] = 1


@pytest.mark.parametrize(
    ("n_tokens", "hashed_whole", "place"),
    [(10_000, True, 1234), (10_000, False, 1234), (2_000_000, False, 0), (2_000_000, False, -1)],
)
def test_a_flipped_byte_is_found(store, monkeypatch, n_tokens, hashed_whole, place) -> None:
    """Of a large store samples are hashed, which reach both ends."""
    if not hashed_whole:
        monkeypatch.setattr(shards, "HASHED_WHOLE_BYTES", 0)
    made = store(np.arange(n_tokens) % 1000)
    made.verify()
    path = made.directory / "00000.bin"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(BrokenStore, match=r"00000.bin does not have the content that was written"):
        IndexedStore(made.directory).verify()


def test_what_is_missing_or_torn_is_named(store) -> None:
    directory = store(np.arange(100)).directory
    index, shard = directory / "index.json", directory / "00000.bin"
    whole = index.read_text()

    def reason() -> str:
        with pytest.raises(BrokenStore) as caught:
            IndexedStore(directory)
        return str(caught.value).removeprefix(directory.name + "/")

    shard.write_bytes(shard.read_bytes()[:150])
    assert reason() == "00000.bin has 150 bytes instead of 200"
    shard.unlink()
    assert reason() == "00000.bin is missing"
    index.write_text(whole[:50])
    assert reason().startswith("index.json cannot be read (")
    index.write_text(json.dumps(json.loads(whole) | {"format": 0}))
    assert reason() == "index.json is of another format"
    index.write_text("[]")
    assert reason().startswith("index.json cannot be read (")
    index.unlink()
    assert reason() == "index.json is missing"
