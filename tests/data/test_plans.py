"""Plans of packing in the cache: made once, mapped by whoever needs them, never a stale one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.data.batches import plans
from forge.data.batches.packing import plan_samples
from forge.data.batches.plans import KeptPlan, kept_plan
from forge.data.tokens.cache import cache_root
from forge.data.tokens.store import Slice
from forge.data.tokens.token_files import token_file
from forge.data.tokens.tokens import FileStore

HOW: dict[str, Any] = {"end_of_text": 0, "seq_len": 8, "policy": "best_fit", "max_segments": 0}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was asked for of every plan that was made."""
    calls: list[dict[str, Any]] = []

    def counting(store: Any, **how: Any) -> Any:
        calls.append(how)
        return plan_samples(store, **how)

    monkeypatch.setattr(plans, "plan_samples", counting)
    return calls


def text(seed: int = 0, n: int = 500) -> np.ndarray:
    tokens = np.random.default_rng(seed).integers(1, 50, n)
    tokens[:: 3 + seed] = 0
    return tokens


def same(found: KeptPlan, store: Any, **how: Any) -> None:
    expected = plan_samples(store, **(HOW | how))
    np.testing.assert_array_equal(found.pieces, expected.pieces)
    np.testing.assert_array_equal(found.begins, expected.begins)


def test_a_second_start_makes_nothing(store, tmp_path: Path, made: list) -> None:
    whole, said = store(text()), []
    first = kept_plan(tmp_path, whole, announce=said.append, **HOW)
    again = kept_plan(tmp_path, store(text()), announce=said.append, **HOW)  # in another folder
    assert made == [HOW]
    assert said == ["plan which documents share a sequence"]
    for one in (first, again):
        same(one, whole)
        assert not one.pieces.flags.writeable  # a map of a file
        assert not one.begins.flags.owndata
    sent = pickle.dumps(again)
    assert len(sent) < 1000
    same(pickle.loads(sent), whole)


def test_another_text_or_way_is_another_plan(store, tmp_path: Path, made: list) -> None:
    whole = store(text())
    ways: list[dict[str, Any]] = [
        {"seq_len": 16},
        {"policy": "first_fit"},
        {"policy": "concat_then_split", "max_segments": 2},
        {"max_segments": 2},
        {"end_of_text": 7},
    ]
    for way in ({}, *ways):
        same(kept_plan(tmp_path, whole, **(HOW | way)), whole, **way)
    other, part = store(text(1)), Slice(whole, 0, 100)
    same(kept_plan(tmp_path, other, **HOW), other)
    same(kept_plan(tmp_path, part, **HOW), part)
    assert len(made) == 8
    kept_plan(tmp_path, other, **HOW)
    assert len(made) == 8


def test_an_empty_plan_is_kept_too(store, tmp_path: Path, made: list) -> None:
    ends = store([0] * 20)
    assert [len(kept_plan(tmp_path, ends, **HOW)) for _ in range(2)] == [0, 0]
    assert len(made) == 1


@pytest.mark.nightly
def test_files_that_are_hashed_in_samples_are_known_by_their_time_too(
    tmp_path: Path, made: list
) -> None:
    """A document that ends elsewhere, between the samples, is another plan."""
    tokens, file = text(n=3 << 20).astype("<u2"), tmp_path / "tokens.npy"
    np.save(file, tokens)
    before = FileStore([token_file(file, None)], n_ids=50)
    kept_plan(tmp_path, Slice(before, 0, 3 << 20), **HOW)
    place = next(at for at in range(9000, 80000) if tokens[at] and not tokens[at - 1])
    tokens[place] = 0
    np.save(file, tokens)
    os.utime(file, ns=(1, 1))
    after = FileStore([token_file(file, None)], n_ids=50)
    assert after.fingerprint == before.fingerprint
    same(kept_plan(tmp_path, Slice(after, 0, 3 << 20), **HOW), after)
    assert len(made) == 2


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["pieces/00000.bin", "begins/00000.bin"])
@pytest.mark.parametrize("damage", [_cut, _changed, Path.unlink])
def test_what_is_torn_is_made_anew(store, tmp_path: Path, made: list, name, damage) -> None:
    whole = store(text())
    kept_plan(tmp_path, whole, **HOW)
    (entry,) = (tmp_path / "plans").glob("[!.]*")
    damage(entry / name)
    same(kept_plan(tmp_path, whole, **HOW), whole)
    assert len(made) == 2
    kept_plan(tmp_path, whole, **HOW)
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_names_its_option(store, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ValueError, match=r"data\.cache_dir = .*/cache: cannot write prepared data"):
        kept_plan(cache_root(str(tmp_path / "cache")), store(text()), **HOW)
