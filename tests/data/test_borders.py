"""Tokens that begin and end documents: what is written, what is checked, how prompts begin."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section, make_prose

from forge import prepare as verb
from forge.config.data.text import Pairs, Shards, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data.preparing.cached import prepare_tokens
from forge.data.preparing.shard_folder import prepare_shards
from forge.data.preparing.soundness import find_damage
from forge.data.tokenizers.tokenizer import byte_ids
from forge.training.callbacks.samples import encode_prompt, opening

DOCUMENTS = [make_prose(4, seed) for seed in range(40)] + [make_prose(300)]
END, BEGIN = 256, 257
WAYS = {
    "end": (Bytes(), [], [END]),
    "both": (Bytes(add_bos=True), [BEGIN], [END]),
    "begin": (Bytes(add_bos=True, add_eos=False), [BEGIN], []),
    "one token": (Bytes(add_bos=True, add_eos=False, bos_token="<|endoftext|>"), [END], []),
}


@pytest.fixture
def data(tmp_path: Path) -> Text:
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    return Text(path=str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.2)


@pytest.mark.parametrize("name", WAYS)
def test_documents_begin_and_end_in_each_split(
    tmp_path: Path, data: Text, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, first, last = WAYS[name]
    monkeypatch.setattr("forge.data.preparing.shard_folder.LEAST_PART", 1 << 10)
    cached = prepare_tokens(data, section, build=build_section)
    prepare_shards(tmp_path / "out", data, section, build=build_section, processes=1)
    assert find_damage(tmp_path / "out") == []
    own = TokenizerFile(path=str(tmp_path / "out/tokenizer/tokenizer.json"))
    own.add_bos, own.add_eos, own.bos_token = section.add_bos, section.add_eos, section.bos_token
    shards = prepare_tokens(Shards(path=str(tmp_path / "out")), own, build=build_section)
    seen = []
    for split in ("train", "val"):
        store = getattr(cached, split)
        ids = store.read(0, len(store)).tolist()
        again = getattr(shards, split)
        assert again.read(0, len(again)).tolist() == ids
        offsets = np.fromfile(tmp_path / "out" / split / "documents.i64", "<i8").tolist()
        assert (offsets[0], offsets[-1]) == (0, len(ids))
        here = [ids[a:b] for a, b in itertools.pairwise(offsets)]
        texts = [bytes(token for token in each if token < 256).decode() for each in here]
        assert here == [[*first, *text.encode(), *last] for text in texts]
        seen += texts
    assert {*DOCUMENTS[:-1]} <= {*seen}
    assert sum(map(len, seen)) == sum(map(len, DOCUMENTS))


def test_shards_are_refused_where_documents_begin_otherwise(
    tmp_path: Path, data: Text, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [str(out), "--processes", "1", "data=text", f"data.path={data.path}"]
    words += [f"data.cache_dir={data.cache_dir}", "tokenizer=bytes", "run.device=cpu"]
    assert verb.main([*words, "tokenizer.add_bos=true", "tokenizer.add_eos=false"]) == 0
    typed = f"tokenizer=file tokenizer.path={out}/tokenizer tokenizer.add_bos=true"
    typed += " tokenizer.add_eos=false"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"  train on it: data=shards data.path={out} {typed}"
    own: Any = {"path": str(out / "tokenizer" / "tokenizer.json")}
    for options in ({}, {"add_bos": True}):
        with pytest.raises(ValueError) as caught:
            prepare_tokens(
                Shards(path=str(out)), TokenizerFile(**own, **options), build=build_section
            )
        what = f"these shards were made with another tokenizer. Choose theirs: {typed}."
        assert str(caught.value) == f"data.path = {out}/train: {what}"
    assert verb.main(words) == 2
    said = capsys.readouterr().err
    assert f"{out}: it was made with another tokenizer. Remove it" in said


def test_a_response_does_not_learn_the_beginning(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}+{n}=", "response": str(2 * n)} for n in range(60)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Pairs(path=f"{tmp_path}/p.jsonl", cache_dir=f"{tmp_path}/cache")
    store = prepare_tokens(data, Bytes(add_bos=True), build=build_section).train
    assert store.counted is not None
    ids, counted = store.read(0, len(store)), store.counted.read(0, len(store))
    assert not counted[ids == BEGIN].any()
    assert counted[ids == END].all()


def test_prompts_begin_as_documents_do(data: Text) -> None:
    plain, both = byte_ids(Bytes(), text=None), byte_ids(Bytes(add_bos=True), text=None)
    assert (encode_prompt(plain, "a"), encode_prompt(plain, "")) == ([97], [END])
    assert (encode_prompt(both, "a"), encode_prompt(both, "")) == ([BEGIN, 97], [BEGIN])
    one = byte_ids(WAYS["one token"][0], text=None)
    assert (encode_prompt(one, "a"), one.end_id, one.vocab_size) == ([END, 97], END, 257)
    store = prepare_tokens(data, Bytes(add_bos=True), build=build_section).val
    assert len(opening(store, both, 12).encode()) == 11
    assert both.token_bytes()[[BEGIN, END]].tolist() == [0, 0]


def test_a_beginning_is_one_of_the_entries_of_a_vocabulary(data: Text) -> None:
    """Which prepared data of other options is not taken for."""
    begun = prepare_tokens(data, BPE(vocab_size=300, add_bos=True), build=build_section)
    plain = prepare_tokens(data, BPE(vocab_size=300), build=build_section)
    assert begun.tokenizer.vocab_size == plain.tokenizer.vocab_size == 300
    assert begun.tokenizer.bos_token == "<|bos|>"
    assert begun.tokenizer.begin_id == 1
    assert begun.manifest["tokenizer"]["add_bos"] is True
    assert begun.manifest["cache"] != plain.manifest["cache"]
    named = prepare_tokens(
        data, BPE(vocab_size=300, add_bos=True, bos_token="<s>"), build=build_section
    )
    assert named.tokenizer.bos_token == "<s>"
    assert named.train.fingerprint == begun.train.fingerprint
    assert named.manifest["cache"] != begun.manifest["cache"]
