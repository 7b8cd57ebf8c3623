"""Files of JSON lines: strict, complete after a kill, and cut to where a checkpoint left them."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forge.rundir.files import append_row, cut_rows, last_lines, last_rows, read_rows, row_sizes


def test_rows_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_row(path, {"step": 1, "loss": 0.1, "bad": math.nan, "worse": -math.inf, "off": False})
    append_row(path, {"text": 'Ä\u2028"\n', "argument": os.fsdecode(b"\xff")})
    expected = [
        {"step": 1, "loss": 0.1, "bad": None, "worse": None, "off": False},
        {"text": 'Ä\u2028"\n', "argument": "\udcff"},
    ]
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == expected
    assert "Ä" in path.read_text()


def test_no_row_is_lost_by_a_kill_and_a_torn_one_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    script = f"""
from forge.rundir.files import append_row
from pathlib import Path
for step in range(10**9):
    append_row(Path({str(path)!r}), {{"step": step, "text": "x" * 1000}})
    print(step, flush=True)
"""
    command, root = [sys.executable, "-c", script], Path(__file__).parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    last = 0
    while last < 20:
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    last = int([str(last), *process.stdout.read().splitlines()][-1])
    process.wait()
    process.stdout.close()
    with path.open("a") as file:
        file.write('{"step": ')
    append_row(path, {"step": -1})
    *steps, end = [row["step"] for row in read_rows(path)]
    assert end == -1
    assert steps == list(range(len(steps)))
    assert last < len(steps) <= last + 2
    assert last_rows(path) == read_rows(path)[-len(last_rows(path)) :] != []
    assert len(last_lines(path, 7)) == 7
    assert read_rows(tmp_path / "none") == last_rows(tmp_path / "none") == []


def test_cut_puts_every_file_back_to_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / name for name in "abc"]
    for file in files[:2]:
        file.write_text("{}\n")
    sizes = row_sizes(files)
    assert sizes == {"a": 3, "b": 3}
    for file in files:
        append_row(file, {"later": 1})
    with caplog.at_level(logging.WARNING):
        cut_rows(files, sizes | {"b": 99})
    assert [file.stat().st_size for file in files] == [3, 16, 0]
    assert [record.getMessage() for record in caplog.records] == [
        f"{files[1]} has 16 bytes, 83 less than at the checkpoint: rows before it are lost"
    ]


def test_a_full_disk_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError) as raised:
        append_row(tmp_path / "a.jsonl", {"a": 1})
    what = "cannot be written: No space left on device; make room or give access"
    assert str(raised.value) == f"{tmp_path}/a.jsonl {what}"
