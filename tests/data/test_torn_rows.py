"""Rows that a lenient reader would cut, or end in a traceback: each is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge.data.text import reading
from forge.data.text.corpus import _read_by_kind
from forge.data.text.reading import BadFile

DEEP = "[" * 100_000 + "]" * 100_000


def texts(file: Path) -> list[str]:
    return ["".join(document) for document in _read_by_kind(file, text_field="text")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,text\n1,plain\n2,hello, world\n", "line 3 has more than the 2 fields"),
        ("a.json", '[{"text":"one"}]\n[{"text":"two"}]', "has something after its array ('[{"),
        ("b.json", '[{"text":"one"}] more', "has something after its array ('more')"),
        ("c.json", '[{"text":"one"}{"text":"two"}]', "element 2 does not follow a comma"),
        ("d.json", '[{"text":"one"},,{"text":"two"}]', "element 2 is not JSON"),
        ("e.json", '[,{"text":"one"}]', "element 1 is not JSON"),
        ("f.json", f'[{{"text":"one","x":{DEEP}}}]', "element 1 cannot be read as JSON"),
        ("g.json", f'{{"text":"one","x":{DEEP}}}', "cannot be read as JSON (it is nested too deep"),
        ("h.jsonl", f'{{"text":"one","x":{DEEP}}}\n', "line 1 cannot be read as JSON"),
        ("i.jsonl", f'{{"text":"one","x":{"9" * 5000}}}\n', "number of too many digits"),
    ],
)
def test_what_is_no_row_is_refused_with_its_place(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadFile) as refused:
        texts(file)
    assert f"{file} " in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize("block", [2, 3, 7, 1 << 20])
def test_an_array_is_read_whole_wherever_its_blocks_end(tmp_path, monkeypatch, block):
    monkeypatch.setattr(reading, "BLOCK_BYTES", block)
    rows = [{"text": "one, [two]"}, {"text": 'th"ree 😀', "n": 12}, {"text": ""}]
    for indent, end in ((None, ""), (2, "\n \n")):
        file = tmp_path / "rows.json"
        file.write_text(json.dumps(rows, indent=indent) + end)
        assert texts(file) == [row["text"] for row in rows]
    (tmp_path / "none.json").write_text(" [ \n ] ")
    assert texts(tmp_path / "none.json") == []
