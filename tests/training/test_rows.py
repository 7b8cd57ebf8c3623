"""Files of JSON lines: strict, whole after a kill, and cut to where a checkpoint left them."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forge.training.rows import ROW_FILES, Rows, cut, lengths


def strict(path: Path) -> list[dict[str, object]]:
    """The rows, by a reader that takes no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_bytes().splitlines()]


def test_rows_are_strict_json_and_there_before_close(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "new" / "a.jsonl")
    rows.append(
        {
            "step": 1,
            "loss": 0.1,
            "bad": math.nan,
            "worse": -math.inf,
            "numpy": np.float32(0.5),
            "off": False,
            "none": None,
        }
    )
    rows.append({"text": 'Ä\u2028"\n', "argument": os.fsdecode(b"\xff")})
    expected = [
        {
            "step": 1,
            "loss": 0.1,
            "bad": None,
            "worse": None,
            "numpy": 0.5,
            "off": False,
            "none": None,
        },
        {"text": 'Ä\u2028"\n', "argument": "\udcff"},
    ]
    assert strict(rows.path) == expected
    rows.close()


@pytest.mark.parametrize("whole", [0, 1, 3])
@pytest.mark.parametrize("torn", [b"", b'{"step": ', b'{"text": "' + b"x" * 200_000])
def test_a_torn_last_line_is_cut_when_the_file_is_opened(
    tmp_path: Path, whole: int, torn: bytes
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' * whole + torn)
    rows = Rows(path)
    rows.append({"a": 2})
    rows.close()
    assert strict(path) == [{"a": 1}] * whole + [{"a": 2}]


def test_no_row_is_lost_or_torn_by_a_kill(tmp_path: Path) -> None:
    script = f"""
from forge.training.rows import Rows
from pathlib import Path
rows = Rows(Path({str(tmp_path / "a.jsonl")!r}))
for step in range(10**9):
    rows.append({{"step": step, "text": "x" * 1000}})
    print(step, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    last = 0
    while last < 20:
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    last = int([str(last), *process.stdout.read().splitlines()][-1])
    process.wait()
    process.stdout.close()
    Rows(tmp_path / "a.jsonl").close()
    steps = [row["step"] for row in strict(tmp_path / "a.jsonl")]
    assert steps == list(range(len(steps)))
    assert last < len(steps) <= last + 2


def test_cut_puts_every_file_back_to_its_length(tmp_path: Path) -> None:
    before, after = '{"a":1}\n', '{"a":2}\n'
    for name in ROW_FILES[:2]:
        (tmp_path / name).write_text(before)
    recorded = lengths(tmp_path)
    assert recorded == dict.fromkeys(ROW_FILES[:2], len(before))
    for name in ROW_FILES:
        with (tmp_path / name).open("a") as file:
            file.write(after)
    (tmp_path / "other.jsonl").write_text(after)
    cut(tmp_path, recorded)
    assert [(tmp_path / name).read_text() for name in (*ROW_FILES, "other.jsonl")] == [
        before,
        before,
        "",
        after,
    ]
    cut(tmp_path, {})
    assert lengths(tmp_path) == dict.fromkeys(ROW_FILES, 0)


def test_a_file_that_lost_rows_is_left_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with caplog.at_level(logging.WARNING):
        cut(tmp_path, {"metrics.jsonl": 10, "samples.jsonl": 4})
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/metrics.jsonl has 3 bytes, 7 less than at the checkpoint: rows before it are lost",
        f"{tmp_path}/samples.jsonl has 0 bytes, 4 less than at the checkpoint: rows before it are lost",
    ]


def test_nothing_of_a_row_that_does_not_fit_stays(tmp_path: Path) -> None:
    """On a file system with a limit: the row that does not fit whole leaves the file as it was."""
    script = f"""
import resource, signal
from forge.training.rows import Rows
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
rows = Rows(Path({str(tmp_path / "a.jsonl")!r}))
rows.append({{"a": 1}})
resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
try:
    rows.append({{"text": "x" * 100}})
except OSError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith(
        f"{tmp_path}/a.jsonl cannot be written: File too large; make room"
    )
    assert strict(tmp_path / "a.jsonl") == [{"a": 1}]
