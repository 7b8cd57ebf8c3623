"""Texts to score as JSONL, Parquet and prepared tokens: the same documents, the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forge import evaluate, prepare
from forge.rundir import evaluations

TEXTS = ["the white whale of the sea said the captain and " * 4, "the ship", "a sea"]


def test_jsonl_parquet_and_prepared_data_score_alike(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": TEXTS}), table)
    tokenizer = next(tiny_run.glob("checkpoints/step_6/tokenizer/tokenizer.json"))
    read = ["data=text", f"data.path={rows}", "data.val_fraction=0", "eval=off"]
    read += ["tokenizer=file", f"tokenizer.path={tokenizer}"]
    assert prepare.main([str(tmp_path / "shards"), *read]) == 0
    capsys.readouterr()
    shards = tmp_path / "shards" / "train"
    words = [str(tiny_run), "--json", f"eval.data={shards}", str(rows), str(table)]
    assert evaluate.main(words) == 0
    by_task = {each["task"]: each for each in json.loads(capsys.readouterr().out)}
    assert set(by_task) == {"rows", "table", "train"}
    for summary in by_task.values():
        assert summary["items"] == 3
        assert summary["metrics"] == by_task["rows"]["metrics"]
    read = [evaluations.item_rows(tiny_run, task, 6) for task in by_task]
    assert [row["metrics"] for row in read[0]] == [row["metrics"] for row in read[1]]
