"""What a stream is read from, what is held out of it, and what is said of text that is wrong."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
from data_helpers import build_section
from stream_helpers import (
    N_ROWS,
    SEQ,
    TEXTS,
    documents,
    ids,
    kept,
    loaders,
    rows,
    streamed,
)

from forge.config.data.text import HuggingFace
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared
from forge.data.preparing.shard_folder import prepare_shards


def lines(path: Path, texts: list[Any], field: str = "text") -> None:
    content = "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def forms(tmp_path: Path) -> Path:
    """The same 120 rows in each form."""
    texts = [text for file in TEXTS for text in file]
    lines(tmp_path / "rows.jsonl", texts)
    lines(tmp_path / "rows.jsonl.gz", texts)
    pandas.DataFrame({"text": texts}).to_parquet(tmp_path / "rows.parquet")
    pandas.DataFrame({"text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    whole = datasets.Dataset.from_dict({"text": texts})
    whole.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "lines.txt").write_text("".join(text.replace("\n", " ") + "\n" for text in texts))
    return tmp_path


def test_every_form_gives_the_same_samples(forms: Path) -> None:
    """Also to a process that the text is sent to."""
    found = {}
    names = ("rows.jsonl", "row?.jsonl", "rows.jsonl.gz", "*.jsonl.gz", "rows.parquet", "saved")
    for name in (*names, "lines.txt"):
        text = streamed(forms / name, stream_parts=1, val_fraction=0.0).train
        found[name] = rows(loaders(text, 1), 10)
        assert rows(loaders(pickle.loads(pickle.dumps(text)), 1), 10) == found[name]
    spaces = [[32 if token == 10 else token for token in row] for row in found["rows.jsonl"]]
    assert found.pop("lines.txt") == spaces
    assert all(each == found["rows.jsonl"] for each in found.values())


def test_what_is_held_out_is_never_trained_on(folder: Path) -> None:
    """A share or a number of the first documents, or none; the same ones whatever else is chosen,
    and equal ones that come later are left out too.
    """
    texts = [text for file in TEXTS for text in file if text]
    for options, least in ({"val_fraction": 0.2}, 3), ({"val_documents": 4}, 4):
        prepared = streamed(folder, stream_parts=2, val_from_first=40, **options)
        held = documents(prepared.val.read(0, len(prepared.val)).tolist())
        assert len(held) >= least
        assert set(held) <= set(texts[:40])
        read = {document for number in (0, 1) for document in part_of(prepared, number, texts)}
        assert read == set(texts) - set(held)
    assert any(texts.count(text) > 1 for text in texts)
    none = streamed(folder, val_fraction=0.0)
    assert len(none.val) == 0
    assert isinstance(none.train, Streamed)
    assert not none.train.held_out


def part_of(prepared: Prepared, number: int, texts: list[str]) -> list[str]:
    """The documents of an epoch of a part."""
    text = prepared.train
    assert isinstance(text, Streamed)
    units = [file[at : at + 10] for file in TEXTS for at in range(0, N_ROWS, 10)]
    wanted = [one for unit in text.parts[number] for one in kept(prepared, units[unit])]
    size = sum(len(ids(one)) for one in wanted)
    samples = rows(loaders(text, 1), size // SEQ * 2 // 12 + 2)
    found = documents([token for sample in samples[number::2] for token in sample][:size])
    assert sorted(found) == sorted(wanted)
    return found


def test_validation_on_other_text(folder: Path, tmp_path: Path) -> None:
    lines(tmp_path / "val.jsonl", ["a whale", "a ship"])
    prepared = streamed(folder, validation={"path": str(tmp_path / "val.jsonl")})
    assert documents(prepared.val.read(0, len(prepared.val)).tolist()) == ["a whale", "a ship"]
    texts = [text for file in TEXTS for text in file if text]
    assert isinstance(prepared.train, Streamed)
    assert not prepared.train.held_out
    assert prepared.manifest["validation"]["splits"]["val"]["documents"] == 2
    assert len(texts) > 100


def refusal(path: Path, steps: int = 30, **options: Any) -> str:
    """What is said when it is prepared, or read."""
    with pytest.raises(ValueError) as caught:
        rows(loaders(streamed(path, **({"stream_parts": 1} | options)).train, 1), steps)
    return str(caught.value).replace(str(path.parent), "DIR")


def test_refusals(tmp_path: Path, forms: Path) -> None:
    saved = forms / "rows.parquet"
    assert refusal(saved, text_field="body") == (
        "data.text_field = body: DIR/rows.parquet has no such column (its columns: "
        "text). Name one of them."
    )
    assert refusal(forms / "lines.txt", text_field="body") == (
        "data.text_field = body: DIR/lines.txt has no such column (its columns: "
        "text). Name one of them."
    )
    lines(tmp_path / "null.jsonl", ["some text"] * 5 + [None, "more"])
    assert refusal(tmp_path / "null.jsonl") == (
        "data.path: DIR/null.jsonl row 6: field 'text' is null, not text. "
        "Choose another with data.text_field."
    )
    pandas.DataFrame({"text": range(9)}).to_parquet(tmp_path / "int.parquet")
    assert refusal(tmp_path / "int.parquet") == (
        "data.path: DIR/int.parquet row 1: field 'text' is int, not text. "
        "Choose another with data.text_field."
    )
    lines(tmp_path / "empty.jsonl", ["", "", ""])
    assert refusal(tmp_path / "empty.jsonl") == (
        "data: there is no text in DIR/empty.jsonl. Give some to train on."
    )
    assert refusal(tmp_path / "empty.jsonl", val_fraction=0.0) == (
        "data: there is no text in DIR/empty.jsonl. Give more text."
    )
    lines(tmp_path / "one.jsonl", ["one", "one"])
    assert refusal(tmp_path / "one.jsonl") == (
        "data: DIR/one.jsonl has one document, too little to hold some out for validation. "
        "Give more text; or other text to validate on, data.validation."
    )
    assert refusal(tmp_path / "one.jsonl", val_fraction=0.0) == (
        "train.seq_len = 16: DIR/one.jsonl has 8 tokens, less than one sample of seq_len + 1. "
        "Set train.seq_len=7 or less, or give more text."
    )
    assert refusal(saved, val_documents=500) == (
        "data.val_documents = 500: the first 114 have 104 different ones, and some must be left to "
        "train on. Hold out fewer, or look at more with data.val_from_first."
    )
    short = pandas.DataFrame({"text": ["a", "b", "c", "d"]})
    short.to_parquet(tmp_path / "short.parquet", row_group_size=2)
    assert refusal(tmp_path / "short.parquet", stream_parts=2, val_fraction=0.0) == (
        "train.seq_len = 16: part 1 of 2 of DIR/short.parquet has 4 tokens, less than one sample "
        "of seq_len + 1. Set data.stream_parts=1, or train.seq_len=3 or less, or give more text."
    )
    assert refusal(saved, hf_dataset_split="train[:10%]").startswith("data.path = DIR/rows.parquet")


def test_what_breaks_while_it_trains_is_named(folder: Path, forms: Path) -> None:
    """Files that end too early, or are gone, after the row that was read last."""
    gone = forms / "gone"
    gone.mkdir()
    for number in (0, 1):
        (gone / f"{number}.parquet").write_bytes((folder / f"{number}.parquet").read_bytes())
    text = streamed(gone, stream_parts=1, shuffle_buffer=1, val_from_first=20).train
    content = (gone / "1.parquet").read_bytes()
    (gone / "1.parquet").write_bytes(content[:-100])
    with pytest.raises(
        ValueError, match=r"^data: cannot read \S*/gone/1\.parquet after row 0 \("
    ) as e:
        rows(loaders(text, 1), 30)
    assert str(e.value).endswith("). Check that it is complete.")
    (gone / "1.parquet").unlink()
    with pytest.raises(ValueError, match=r"^data: cannot read \S*/gone/1\.parquet after row 0 \("):
        rows(loaders(text, 1, workers=1), 30)
    packed = (forms / "rows.jsonl.gz").read_bytes()
    (forms / "rows.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    assert refusal(forms / "rows.jsonl.gz") == (
        "data.path = DIR/rows.jsonl.gz: Compressed file ended before the end-of-stream marker was "
        "reached. Check its name, data.hf_dataset_config and data.hf_dataset_split."
    )


def test_a_stream_is_not_prepared(folder: Path, tmp_path: Path) -> None:
    section = HuggingFace(path=str(folder), hf_streaming=True, cache_dir=str(tmp_path))
    with pytest.raises(ValueError) as caught:
        prepare_shards(tmp_path / "out", section, Bytes(), build=build_section, processes=1)
    assert str(caught.value) == (
        "data.hf_streaming=true: a stream is read while it trains, and not prepared. Leave it out "
        "to prepare the text."
    )
