"""forge.preview shows the rows that a run reads, and what of them the loss reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge import preview

TURNS = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]


def test_what_is_learnt_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.dumps({"messages": TURNS}) + "\n"
    (tmp_path / "a.jsonl").write_text(row + row.replace("Yes", "Maybe, or maybe not"))
    words = [f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}", "data.val_fraction=0"]
    words += ["data=chat", "tokenizer=bytes", "debug=fast", "train.seq_len=60", "--rows", "2"]
    words += ["eval.enabled=false", "data.shuffle=false"]
    assert preview.main(words) == 0
    assert capsys.readouterr().out == (
        "row 1: 29 tokens, 6 of them learnt\n"
        "User: Hello?\nAssistant:⟦ Yes.<|endoftext|>⟧\n\n"
        "row 2: 45 tokens, 22 of them learnt\n"
        "User: Hello?\nAssistant:⟦ Maybe, or maybe not.<|endoftext|>⟧\n\n"
        "of 74 tokens 28 are learnt, 38%\n"
    )
    assert preview.main([*words, "--json", "data.train_on=all"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert bytes(first["tokens"][:-1]).decode() == "User: Hello?\nAssistant: Yes."
    assert first["learnt"] == [0, *[1] * 28], "nothing comes before the first"


def test_what_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n')
    words = ["data=chat", f"data.path={tmp_path}/a.jsonl", f"data.cache_dir={tmp_path}"]
    assert preview.main([*words, "debug=fast", "tokenizer=bytes"]) == 2
    said = f"data.path: {tmp_path}/a.jsonl line 1: it has no list under 'messages' "
    assert said in capsys.readouterr().err
