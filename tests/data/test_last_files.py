"""The last files of a text as its validation split: prepared, streamed, and of forge.prepare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section, shards_of, tokens
from stream_helpers import EOS, TEXTS, loaders, rows, streamed

from forge import prepare
from forge.config.data.mixture import Mix
from forge.config.data.text import Text
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.preparing.cached import Prepared, prepare_tokens


def section(path: Path, **options: Any) -> Text:
    return Text(path=str(path), cache_dir=str(path.parent / "cache"), val_files=1, **options)


def prepared(data: Any) -> Prepared:
    return prepare_tokens(data, Bytes(), build=build_section)


def encoded(texts: list[str]) -> list[int]:
    return [token for text in texts if text for token in [*text.encode(), EOS]]


def content(store: Any) -> list[int]:
    return store.read(0, len(store)).tolist() if len(store) else []


def test_the_last_shard_is_validation_whatever_is_in_it(folder: Path, tmp_path: Path) -> None:
    """Also documents that are in other files; a share of documents is another split."""
    expected = {"train": encoded(TEXTS[0] + TEXTS[1]), "val": encoded(TEXTS[2])}
    found = prepared(section(folder))
    assert {"train": content(found.train), "val": content(found.val)} == expected
    manifest = shards_of(tmp_path / "out", section(folder), Bytes())
    assert {split: tokens(tmp_path / "out", split) for split in expected} == expected
    assert manifest["splits"]["val"]["documents"] == sum(map(bool, TEXTS[2]))
    by_hash = prepare_tokens(Text(path=str(folder)), Bytes(), build=build_section)
    assert content(by_hash.val) != expected["val"]
    two = Text(path=str(folder), cache_dir=str(tmp_path), val_files=2)
    assert content(prepared(two).val) == encoded(TEXTS[1] + TEXTS[2])


def test_a_source_of_a_mixture_too(folder: Path) -> None:
    options: Any = {"cache_dir": str(folder.parent / "cache")}
    mix = Mix(sources={"a": {"path": str(folder), "val_files": 1}}, **options)
    found = prepared(mix)
    assert content(found.sets["a"]) == encoded(TEXTS[2])


def test_a_stream_reads_only_the_others(folder: Path) -> None:
    found = streamed(folder, val_files=1, stream_parts=4)
    assert content(found.val) == encoded(TEXTS[2])
    (text,) = [found.train]
    read = [row for step in rows(loaders(text, 1), 60) for row in np.atleast_2d(step).tolist()]
    spelled = bytes(t for row in read for t in row if t < EOS).decode(errors="ignore")
    alone = [t for t in TEXTS[2] if t and t not in TEXTS[0] + TEXTS[1]]
    assert len(alone) > 20
    assert not any(text[-25:] in spelled for text in alone if len(text) > 40)
    others = [t for t in TEXTS[0] + TEXTS[1] if len(t) > 40]
    assert sum(text[-12:] in spelled for text in others) > 10


def test_a_file_must_be_left_to_train_on(folder: Path) -> None:
    hint = "and one must be left. Hold out fewer"
    with pytest.raises(ValueError, match=rf"data\.val_files = 3: there are 3 files, {hint}"):
        prepare_tokens(
            Text(path=str(folder), cache_dir=str(folder.parent / "cache"), val_files=3),
            Bytes(),
            build=build_section,
        )
    with pytest.raises(ValueError, match=rf"data\.val_files = 3: .* has 3 files, {hint}"):
        streamed(folder, val_files=3)


def test_forge_prepare_says_what_packing_crops_off(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the lengths of the documents alone, one of which fits a buffer of one."""
    texts = [f"data.path={folder}", f"data.cache_dir={tmp_path}/cache", "data.packing_buffer=1"]
    machine = ["tokenizer=bytes", "model.vocab_size=auto", "train.seq_len=32", "run.device=cpu"]
    words = [str(tmp_path / "out"), "--processes", "1", "data=climbmix", *texts, *machine]
    assert prepare.main(words) == 0
    free, cropped, total = 33, 0, 0
    for text in filter(None, TEXTS[0] + TEXTS[1]):
        length = len(text.encode()) + 1
        total, cropped = total + length, cropped + max(length - free, 0)
        free = free - min(length, free) or 33
    said = f"{cropped:,} tokens, {cropped / total:.1%} of the text, are cropped off"
    assert said in capsys.readouterr().out
