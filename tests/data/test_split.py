"""Training and validation text: stable, disjoint, complete."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from data_helpers import make_prose
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.data.text import HeldOut, Text
from forge.data.text.corpus import text_files
from forge.data.text.split import (
    MAX_UNIT,
    MIN_UNIT,
    Split,
    TrainingText,
    cut_text,
    split_corpus,
    unit_of,
)


def of(path: Path, val_fraction: float = 0.2) -> Split:
    return split_corpus(text_files(Text(path=str(path))), HeldOut(val_fraction))


def sides(split: Split) -> tuple[list[str], list[str]]:
    train, val = [], []
    for piece, is_validation in split.pieces():
        (val if is_validation else train).append(piece.text)
    return train, val


def write_documents(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(alphabet="ab \né𝄞", max_size=200),
    unit=st.integers(1, 40),
    block=st.integers(1, 50),
)
def test_cutting_loses_nothing_and_ignores_blocks(text, unit, block) -> None:
    parts = list(cut_text(iter([text[i : i + block] for i in range(0, len(text), block)]), unit))
    assert "".join(part for part, _ in parts) == text
    assert parts == list(cut_text(iter([text]), unit))
    assert all(0 < len(part) <= unit for part, _ in parts)
    assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True] * bool(parts)


def test_cuts_fall_behind_lines_then_spaces() -> None:
    assert [part for part, _ in cut_text(iter(["one\ntwo\nthree four fivesixseven"]), 9)] == [
        "one\ntwo\n",
        "three ",
        "four ",
        "fivesixse",
        "ven",
    ]


def test_unit_is_a_power_of_two_and_a_small_share() -> None:
    assert unit_of(1) == MIN_UNIT
    assert unit_of(1_000_000) == 4096
    assert unit_of(8 << 20) == unit_of(1 << 40) == MAX_UNIT


def test_a_document_keeps_its_side_whatever_else_there_is(tmp_path) -> None:
    documents = [make_prose(4, seed) for seed in range(400)]
    train, val = sides(of(write_documents(tmp_path / "all.jsonl", documents)))
    assert set(train) | set(val) == set(documents)
    assert not set(train) & set(val)
    assert 45 <= len(val) <= 115  # 80 expected, standard deviation 8
    fewer_train, fewer_val = sides(
        of(write_documents(tmp_path / "fewer.jsonl", documents[100:][::-1]))
    )
    assert set(fewer_val) == set(val) & set(documents[100:])
    assert set(fewer_train) == set(train) & set(documents[100:])


def test_equal_documents_are_on_one_side(tmp_path) -> None:
    documents = [make_prose(300, seed) for seed in range(30)]
    train, val = sides(of(write_documents(tmp_path / "twice.jsonl", documents + documents)))
    assert not set(train) & set(val)
    assert len(val) == 2 * len(set(val))


def test_one_file_is_divided_between_lines(tmp_path) -> None:
    text = make_prose(4000)
    path = tmp_path / "x.txt"
    path.write_text(text)
    split = of(path)
    pieces = [(piece, side) for piece, side in split.pieces()]
    assert "".join(piece.text for piece, _ in pieces) == text
    assert all(piece.text.endswith("\n") for piece, _ in pieces)
    assert [piece.last for piece, _ in pieces].count(True) == 1
    share = sum(piece.n_bytes for piece, is_validation in pieces if is_validation) / split.n_bytes
    assert 0.08 < share < 0.35


def test_chance_never_leaves_a_side_empty(tmp_path) -> None:
    for seed in range(20):
        path = write_documents(tmp_path / "x.jsonl", [f"document {seed} {i}" for i in range(3)])
        for fraction in (1e-6, 0.999999):
            train, val = sides(of(path, fraction))
            assert sorted(map(len, (train, val))) == [1, 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no text in it (1 file(s), all empty). Give some text to train on."),
        (
            "too short",
            "9 bytes of text are too few to hold some out for validation. "
            "Give more text, at least 512 bytes or two different documents.",
        ),
    ],
)
def test_messages_about_too_little_text(tmp_path, text, said) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        of(path)
    assert str(caught.value) == f"data.path = {path}: {said}"


def test_training_sample_is_even_and_never_validation(tmp_path) -> None:
    path = tmp_path / "x.txt"
    path.write_text(make_prose(4000))
    split = of(path)
    train, _ = sides(split)
    text = TrainingText(splits=(split,))
    assert list(text.sample(1 << 40)) == train
    sample = list(text.sample(split.n_bytes // 4))
    assert 0.15 * split.n_bytes < sum(len(part.encode()) for part in sample) <= split.n_bytes // 4
    assert set(sample) < set(train)
    positions = [train.index(part) / len(train) for part in sample]
    assert positions[0] < 0.15
    assert positions[-1] > 0.85


def held(path: Path, **how: float) -> tuple[list[str], list[str]]:
    return sides(split_corpus(text_files(Text(path=str(path))), HeldOut(**how)))  # type: ignore[arg-type]


def test_a_number_of_documents_is_held_out_those_of_the_lowest_hashes(tmp_path: Path) -> None:
    documents = [f"document {n}" for n in range(50)]
    path = write_documents(tmp_path / "x.jsonl", [*documents, "document 3"])
    hashes = {text: blake2b(text.encode(), digest_size=8).digest()[::-1] for text in documents}
    lowest = sorted(documents, key=lambda text: hashes[text])
    for number in (1, 7, 49):
        train, val = held(path, documents=number)
        assert set(val) == set(lowest[:number])
        assert sorted([*train, *val]) == sorted([*documents, "document 3"])
        assert not set(train) & set(val)  # equal ones are on one side
    what = "data.val_documents = 50: it has 50 documents, and some must be left to train on."
    with pytest.raises(ValueError, match=f"^{what} Hold out fewer.$"):
        held(path, documents=50)


def test_nothing_is_held_out(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "x.jsonl", ["one alone"])
    assert held(path) == (["one alone"], [])
