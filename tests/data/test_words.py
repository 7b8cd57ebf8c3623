"""Ids put together from words that were met before are those of the tokenizers library."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from data_helpers import make_prose
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from forge.data.tokenizers import words
from forge.data.tokenizers.words import IN_ASCII, Words

ASCII = "ab Z09 '.,()/_\n\r\t\v\f\x1c\x1f\x00\x7f  \n sdmtlver"
OTHER = "é\u0301\u00a0\u0085\u2003\u3000ſ’漢٣Ⅷ\u200b\u180e😀"  # letters, marks, digits, spaces
POOLS = (ASCII, ASCII + OTHER, ASCII[:30] + "é’\u00a0")


def trained(pattern: str | None = None) -> tokenizers.Tokenizer:
    """A byte-level BPE; pattern: None = that of GPT-2, as the library has it."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.pre_tokenizer = pre_tokenizers.Sequence([cut, plain])  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    drawn = random.Random(1)
    mixed = ("".join(drawn.choices(ASCII + OTHER, k=200)) for _ in range(200))
    raw.train_from_iterator([make_prose(200), *mixed], trainer)
    raw.encode_special_tokens = True
    return raw


def texts(n: int) -> list[str]:
    """Short and long ones, in which spaces of all kinds meet letters of all kinds."""
    drawn = random.Random(0)
    return [
        "".join(drawn.choices(POOLS[i % len(POOLS)], k=drawn.choice([0, 1, 3, 8, 30, 200])))
        for i in range(n)
    ]


@pytest.mark.parametrize("pattern", [None, *IN_ASCII])
def test_ids_are_those_of_the_library(pattern: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST", 3000)  # so that it forgets now and then
    raw, found = trained(pattern), texts(6000)
    remembered = Words.of(raw)
    assert remembered is not None
    expected = [one.ids for one in raw.encode_batch(found, add_special_tokens=False)]
    for start in range(0, len(found), 100):
        for text, ids, own in zip(
            found[start : start + 100],
            expected[start:],
            remembered.encode_batch(found[start : start + 100]),
            strict=False,
        ):
            assert own.dtype == np.uint32
            assert own.tolist() == ids, text
    spelled = "a<|end|>b"
    plain = raw.encode(spelled, add_special_tokens=False).ids
    assert remembered.encode_batch([spelled])[0].tolist() == plain


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST", 50)
    remembered = Words.of(trained())
    assert remembered is not None
    for text in make_prose(100).splitlines():
        remembered.encode_batch([text, "x" * 1000])
        assert len(remembered._known) <= 50
        assert max(map(len, remembered._known)) <= words.LONGEST


def _other_pattern(raw: tokenizers.Tokenizer) -> None:
    cut = pre_tokenizers.Split(Regex(r"\w+"), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([cut, plain])  # type: ignore[assignment]


def _set(part: str, value: object) -> Callable[[tokenizers.Tokenizer], None]:
    return lambda raw: setattr(raw, part, value)


@pytest.mark.parametrize(
    "change",
    [
        _other_pattern,
        _set("normalizer", normalizers.NFC()),
        _set("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        _set("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
        _set("pre_tokenizer", pre_tokenizers.Metaspace()),
        _set("model", models.WordLevel({"a": 0}, unk_token="a")),
        lambda raw: setattr(raw.model, "dropout", 0.1),
        lambda raw: raw.add_tokens([AddedToken("the sea", special=False)]),
    ],
)
def test_where_it_is_not_known_where_words_end_the_library_encodes_whole_texts(
    change: Callable[[tokenizers.Tokenizer], None],
) -> None:
    raw = trained()
    change(raw)
    assert Words.of(raw) is None
