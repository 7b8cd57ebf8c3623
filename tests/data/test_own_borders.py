"""Texts whose documents begin and end otherwise than the run's tokenizer has it, against encoding
by the `tokenizers` library and placing the tokens by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from data_helpers import build_section, make_prose
from stream_helpers import closed, loaders, rows

from forge.config.data.eval_sets import data_of
from forge.config.data.mixture import Mix
from forge.config.data.text import HuggingFace, Pairs, Shards, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer import Tokenizer as Section
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.preparing.shard_folder import prepare_shards
from forge.data.preparing.soundness import find_damage
from forge.data.tokenizers.tokenizer import byte_ids
from forge.training.callbacks.samples import encode_prompt, opening

END, BEGIN = "<|endoftext|>", "<|bos|>"
CODE = [make_prose(3, seed) for seed in range(30)]
CHAT = [make_prose(2, seed) for seed in range(100, 130)]
WAYS = [
    (Bytes(add_bos=True), {"add_bos": False}, (False, True)),
    (Bytes(add_bos=True), {"add_eos": False}, (True, False)),
    (Bytes(add_bos=True), {"add_bos": True, "add_eos": True}, (True, True)),
    (Bytes(add_bos=True, add_eos=False), {"add_bos": False, "add_eos": True}, (False, True)),
    (Bytes(add_bos=True, add_eos=False), {"add_eos": True}, (True, True)),
    (BPE(vocab_size=300, add_bos=True), {"add_bos": False}, (False, True)),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, texts in (("code", CODE), ("chat", CHAT)):
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def mixed(folder: Path, section: Section, **own: Any) -> Prepared:
    """Code as the tokenizer has it, and chat with options of its own."""
    sources = {
        "code": {"data": "text", "path": f"{folder}/code.jsonl"},
        "chat": {"data": "text", "path": f"{folder}/chat.jsonl", **own},
    }
    data = Mix(sources=sources, cache_dir=f"{folder}/cache", val_fraction=0.2)
    return prepare_tokens(data, section, build=build_section)


def by_hand(found: Prepared, folder: Path, *, begins: bool, ends: bool) -> dict[str, list[int]]:
    """The ids of each document by the library alone, from the file that is saved."""
    found.tokenizer.save(folder / "saved")
    raw = tokenizers.Tokenizer.from_file(f"{folder}/saved/tokenizer.json")
    first = [raw.token_to_id(BEGIN)] if begins else []
    last = [raw.token_to_id(END)] if ends else []
    made = {}
    for text in CODE + CHAT:
        made[text] = [*first, *raw.encode(text, add_special_tokens=False).ids, *last]
    return made


def read(*stores: Any) -> list[int]:
    return [token for store in stores for token in store.read(0, len(store)).tolist()]


def is_made_of(tokens: list[int], documents: Iterable[list[int]]) -> bool:
    """Whether documents, each once, in any order, are what is there."""
    left = [tuple(one) for one in documents]
    start = 0
    while start < len(tokens):
        here = [one for one in left if tuple(tokens[start : start + len(one)]) == one]
        if not here:
            return False
        longest = max(here, key=len)
        left.remove(longest)
        start += len(longest)
    return not left


@pytest.mark.parametrize(("section", "own", "borders"), WAYS)
def test_each_source_of_a_mixture_has_its_own(
    folder: Path, section: Section, own: dict[str, bool], borders: tuple[bool, bool]
) -> None:
    """The tokenizer of the run, what is saved of it and how prompts begin stay as they are."""
    found, plain = mixed(folder, section, **own), mixed(folder, section)
    stores: Any = found.train.stores  # type: ignore[union-attr]
    of_run = by_hand(found, folder, begins=section.add_bos, ends=section.add_eos)
    of_chat = by_hand(found, folder, begins=borders[0], ends=borders[1])
    assert is_made_of(read(stores["code"], found.sets["code"]), (of_run[one] for one in CODE))
    assert is_made_of(read(stores["chat"], found.sets["chat"]), (of_chat[one] for one in CHAT))
    assert found.tokenizer.fingerprint == plain.tokenizer.fingerprint
    assert found.manifest["tokenizer"] == plain.manifest["tokenizer"]
    assert (found.tokenizer.add_bos, found.tokenizer.add_eos) == (section.add_bos, section.add_eos)
    same: Any = plain.train.stores  # type: ignore[union-attr]
    assert stores["code"].fingerprint == same["code"].fingerprint
    is_same = borders == (section.add_bos, section.add_eos)
    assert (stores["chat"].fingerprint == same["chat"].fingerprint) is is_same
    begin = [] if not section.add_bos else [found.tokenizer.begin_id]
    assert encode_prompt(found.tokenizer, "a") == begin + found.tokenizer.encode("a")
    assert "<|" not in opening(stores["chat"], found.tokenizer, 40)


def test_a_corpus_alone_and_what_validates_it(folder: Path) -> None:
    """Entries of the same kind take the options of the corpus, unless they say otherwise."""
    common: dict[str, Any] = {"path": f"{folder}/code.jsonl", "cache_dir": f"{folder}/cache"}
    other = {"path": f"{folder}/chat.jsonl", "add_bos": True}
    data = Text(**common, add_bos=False, validation=other)
    found = prepare_tokens(data, Bytes(add_bos=True), build=build_section)
    plain = by_hand(found, folder, begins=False, ends=True)
    begun = by_hand(found, folder, begins=True, ends=True)
    assert is_made_of(read(found.train), (plain[one] for one in CODE))
    assert is_made_of(read(found.val), (begun[one] for one in CHAT))
    assert found.tokenizer.add_bos
    again = prepare_tokens(
        Text(**common, val_fraction=0.0), Bytes(add_bos=True), build=build_section
    )
    assert read(again.train) != read(found.train)
    said = prepare_tokens(
        Text(**common, val_fraction=0.0, add_bos=True), Bytes(add_bos=True), build=build_section
    )
    assert said.manifest["cache"] == again.manifest["cache"]


def test_responses_and_sets_have_theirs_too(folder: Path) -> None:
    pairs = ({"prompt": f"{n}+{n}=", "response": str(2 * n)} for n in range(60))
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    from forge.compose import composition

    entry = f"+eval.sets.sums={{data:pairs,path:{folder}/pairs.jsonl,add_eos:false}}"
    config = composition.config(["tokenizer=bytes", f"data.cache_dir={folder}/cache", entry])
    section = data_of(config, "sums")
    assert isinstance(section, Pairs)
    store = prepare_tokens(
        section, byte_ids(Bytes(add_bos=True), text=None), build=build_section
    ).val
    tokens, counted = read(store), read(store.counted)
    lines = [f"{n}+{n}={2 * n}" for n in range(60)]
    assert is_made_of(tokens, ([257, *line.encode()] for line in lines))
    assert sum(counted) == sum(len(str(2 * n)) for n in range(60))


def test_a_stream_obeys_them(folder: Path) -> None:
    common: dict[str, Any] = {"cache_dir": f"{folder}/cache", "path": f"{folder}/chat.jsonl"}
    data = HuggingFace(**common, hf_streaming=True, shuffle_buffer=1, add_bos=True, add_eos=False)
    run = byte_ids(Bytes(add_bos=True), text=None).with_borders(add_bos=False)
    found = prepare_tokens(data, run, build=build_section)
    assert isinstance(found.train, Streamed)
    begun = by_hand(found, folder, begins=True, ends=False)
    held = [text for text in CHAT if json.dumps(begun[text])[1:-1] in json.dumps(read(found.val))]
    assert is_made_of(read(found.val), (begun[text] for text in held))
    assert 0 < len(held) < len(CHAT)
    expected = [token for text in CHAT if text not in held for token in begun[text]]
    assert read(found.train.opening(len(expected) - 1)) == expected


def test_a_mixture_goes_on_where_it_was(folder: Path) -> None:
    """On other ranks too: text and a stream of it, neither of which is as the run's tokenizer."""
    stream = {"data": "hf", "hf_streaming": True, "add_eos": False}
    sources = {
        "code": {"data": "text", "path": f"{folder}/code.jsonl", "add_bos": False},
        "chat": {"path": f"{folder}/chat.jsonl", **stream},
    }
    data = Mix(sources=sources, cache_dir=f"{folder}/cache", val_fraction=0.2)
    text = prepare_tokens(data, Bytes(add_bos=True), build=build_section).train
    whole = loaders(text, 1)
    samples = rows(whole, 10)
    closed(whole)
    borders = {token for sample in samples for token in sample if token > 255}
    assert borders == {256, 257}
    first = loaders(text, 1)
    assert rows(first, 5) == samples[:60]
    state = closed(first)
    second = loaders(text, 2)
    for one in second:
        one.load_state_dict(state)
    assert rows(second, 5) == samples[60:]
    closed(second)


def test_shards_are_kept_with_the_tokenizer_of_their_documents(folder: Path) -> None:
    """So that they are read as they were made, and damage in them is found."""
    out = folder / "out"
    data = Text(path=f"{folder}/code.jsonl", add_bos=False, cache_dir=f"{folder}/cache")
    prepare_shards(out, data, Bytes(add_bos=True), build=build_section, processes=1)
    assert find_damage(out) == []
    file = f"{out}/tokenizer/tokenizer.json"
    found = prepare_tokens(Shards(path=str(out)), TokenizerFile(path=file), build=build_section)
    tokens = np.array(read(found.train, found.val))
    assert (np.count_nonzero(tokens == 256), np.count_nonzero(tokens == 257)) == (len(CODE), 0)
    begun = TokenizerFile(path=file, add_bos=True, bos_token=END, add_eos=False)
    with pytest.raises(ValueError, match="these shards were made with another tokenizer"):
        prepare_tokens(Shards(path=str(out)), begun, build=build_section)


def test_a_tokenizer_without_such_a_token_is_refused(folder: Path) -> None:
    """Where it is the user's own, whose tokens no rule knows."""
    with pytest.raises(ValueError) as caught:
        mixed(folder, Bytes(), add_bos=True)
    what = "data.sources.chat: add_bos=true, and the tokenizer has no token that begins documents. "
    assert str(caught.value) == f"{what}Set tokenizer.bos_token, or add_bos=false."
    with pytest.raises(ValueError) as caught:
        mixed(folder, Bytes(), add_eos=False)
    what = "data.sources.chat: add_bos=false and add_eos=false: no one token is between two "
    assert str(caught.value) == f"{what}documents. Set one of them."
    with pytest.raises(ValueError, match="add_bos=true and add_eos=true: no one token is between"):
        mixed(folder, Bytes(add_bos=True, bos_token=END, add_eos=False), add_eos=True)
