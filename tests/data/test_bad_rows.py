"""data.on_bad_row: rows that cannot be read are refused, or left out, counted and said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from data_helpers import build_section, files, shards_of
from pyarrow import parquet

from forge.config.data.chats import Chat
from forge.config.data.text import Data, HuggingFace, Pairs, Text
from forge.config.objectives.preference import ChatLabelled, Labelled, PreferencePairs
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.text.bad_rows import left_out


def lines(path: Path, rows: list[Any]) -> Path:
    """A text is a line as it stands."""
    said = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in said))
    return path


def table(path: Path, rows: list[Any]) -> Path:
    parquet.write_table(pyarrow.table({"text": rows}), path)
    return path


def saved(path: Path, rows: list[Any]) -> Path:
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(path)
    return path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def turns(said: str) -> dict[str, Any]:
    roles = zip(("user", "assistant"), ("Say it", said), strict=True)
    return {"messages": [{"role": role, "content": content} for role, content in roles]}


def rated(prompt: str, said: str, label: Any) -> dict[str, Any]:
    return {"prompt": prompt, "completion": said, "label": label}


ONE, TWO = "one, two and three of them", "and many more words than that"
TEXTS = [{"text": ONE}, b"{not JSON", {"other": 1}, {"text": None}, b'"\xff"', {"text": TWO}]
PAIR = {"prompt": "How many?", "response": ONE}
PREFERRED = {"prompt": "How many?", "chosen": ONE, "rejected": TWO}
TABLE = f"id,text\n1,{TWO}\n2\n3,a,b\n4,{TWO}\n"
PAIRS = [PAIR, b"[1]", {"prompt": "How?"}, {**PAIR, "a": 1}]
KINDS: dict[str, tuple[type[Data], Callable[[Path, Any], Path], str, Any, tuple[int, ...]]] = {
    "jsonl": (Text, lines, "a.jsonl", TEXTS, (1, 2, 3, 4)),
    "json": (Text, written, "a.json", json.dumps([ONE, 3, {"text": TWO}, {"x": 1}]), (1, 3)),
    "csv": (
        Text,
        written,
        "a.csv",
        f"id,text\n1,{ONE.replace(',', '')}\n2\n3,a,b\n4,{TWO}\n",
        (1, 2),
    ),
    "parquet": (Text, table, "a.parquet", [ONE, None, TWO], (1,)),
    "hf": (HuggingFace, saved, "saved", [ONE, None, TWO], (1,)),
    "pairs": (
        Pairs,
        lines,
        "a.jsonl",
        [PAIR, b"[1]", {"prompt": "How?"}, {**PAIR, "a": 1}],
        (1, 2),
    ),
    "preference": (PreferencePairs, lines, "a.jsonl", [PREFERRED, {"prompt": "How?"}], (1,)),
    "labelled": (
        Labelled,
        lines,
        "a.jsonl",
        [rated("How?", ONE, True), rated("Why?", TWO, 3), b"{", rated("Who?", TWO, False)],
        (1, 2),
    ),
    "chat": (Chat, lines, "a.jsonl", [turns(ONE), b"{", {"messages": []}, turns(TWO)], (1, 2)),
    "chat_labelled": (
        ChatLabelled,
        lines,
        "a.jsonl",
        [rated("How?", ONE, True), rated("Why?", TWO, "so"), [1], rated("Who?", TWO, False)],
        (1, 2),
    ),
}


def prepared(section: Data) -> Prepared:
    return prepare_tokens(section, Bytes(), build=build_section)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_is_left_out_and_counted_in_every_kind(tmp_path, kind):
    section, write, name, content, bad_ones = KINDS[kind]
    schema: Any = section
    number = len(bad_ones)
    how: Any = {"path": str(write(tmp_path / name, content)), "cache_dir": str(tmp_path / "cache")}
    how["val_fraction"] = 0.0
    with pytest.raises(ValueError, match=f"{name}.*(line|row|element) [23]"):
        prepared(schema(**how))
    skips = schema(**how, on_bad_row="skip", max_bad_rows=number)
    whole = prepared(skips)
    bad = whole.manifest["bad_rows"]
    assert (bad["number"], len(bad["first"])) == (number, number)
    (said,) = left_out(whole.manifest)
    assert said.startswith(f"data: {number} row{'s' * (number > 1)} cannot be read, and left out: ")
    assert said.endswith("(data.on_bad_row=skip)")
    again = prepared(skips)  # from the cache
    assert again.manifest["bad_rows"] == bad
    # What is left is what a file without these rows says.
    if write is lines:
        good = [row for place, row in enumerate(content) if place not in bad_ones]
        clean = lines(tmp_path / "clean.jsonl", good)
        alone = prepared(schema(**{**how, "path": str(clean)}))
        assert alone.identity["train"] == whole.identity["train"]
        assert not alone.manifest.get("bad_rows")
    # One more than may be: before anything is kept, and of what was kept under another bound.
    for cache in ("cache", "other"):
        fewer = {**how, "cache_dir": str(tmp_path / cache), "max_bad_rows": number - 1}
        with pytest.raises(ValueError, match=f"data.max_bad_rows = {number - 1}: {number} rows"):
            prepared(schema(**fewer, on_bad_row="skip"))
    with pytest.raises(ValueError, match=f"{name}.*(line|row|element) [23]"):
        prepared(schema(**how))


def test_what_ends_a_file_is_refused_all_the_same(tmp_path):
    for name, content in {
        "a.csv": 'id,text\n1,plain\n2,"never closed\n3,more\n',
        "b.json": '[{"text": "one"}, {"text": ',
        "c.csv": "id,other\n1,plain\n",
    }.items():
        file = written(tmp_path / name, content)
        section = Text(path=str(file), on_bad_row="skip", cache_dir=str(tmp_path / "cache"))
        with pytest.raises(ValueError, match=name):
            prepared(section)


def test_a_text_of_bad_rows_alone_says_so(tmp_path):
    file = lines(tmp_path / "a.jsonl", [{"txt": ONE}, {"txt": TWO}])
    section = Text(path=str(file), on_bad_row="skip", cache_dir=str(tmp_path / "cache"))
    message = "none of its rows can be read, of which 2 are left out .*line 1 has no field 'text'"
    with pytest.raises(ValueError, match=message):
        prepared(section)


def test_prepared_shards_say_what_they_lack_and_go_on_alike(tmp_path):
    file = lines(tmp_path / "a.jsonl", TEXTS * 40)
    how: Any = {"path": str(file), "cache_dir": str(tmp_path / "cache"), "val_fraction": 0.2}
    section = Text(**how, on_bad_row="skip", max_bad_rows=160)
    manifest = shards_of(tmp_path / "one", section, Bytes())
    assert manifest["bad_rows"]["number"] == 160
    assert shards_of(tmp_path / "one", section, Bytes()) == manifest
    shards_of(tmp_path / "two", section, Bytes(), processes=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    fewer = Text(**how, on_bad_row="skip", max_bad_rows=159)
    with pytest.raises(ValueError, match="max_bad_rows = 159: 160 rows"):
        shards_of(tmp_path / "one", fewer, Bytes())
