"""A run of four ranks, one of which is killed, goes on with three and then with four again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny import TINY
from kill_ranks import ranks_of

from forge.rundir.checkpoints import Saved
from forge.rundir.files import last_rows, read_rows
from forge.rundir.wall_clock.goodput import read_goodput

OPTIONS = [
    *(word for word in TINY if not word.startswith(("train.batch_size", "train.max_steps"))),
    "parallel=fsdp",
    "run.num_processes=4",
    "train.batch_size=3",
    "train.global_batch_size=12",
    "train.max_steps=150",
    "checkpoint.interval=10",
    "optimizer=adamw",
    "optimizer.lr=0.001",
]


def until(holds: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600.0
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def step_of(run_dir: Path) -> int:
    return max((row["step"] for row in last_rows(run_dir / "metrics.jsonl")), default=0)


@pytest.mark.nightly
def test_four_ranks_then_three_then_four(text_file: Path, tmp_path: Path) -> None:
    """Nobody types a thing; the loss of each step is that of a run left alone, within 1e-5."""
    command = [sys.executable, "-m", "forge.train", *OPTIONS, "data=text", f"data.path={text_file}"]
    alone, run = tmp_path / "alone", tmp_path / "run"
    subprocess.run([*command, f"run.dir={alone}"], check=True, capture_output=True, timeout=900)
    elastic = ["run.max_restarts=3", "run.elastic=2:4", "run.elastic_retry_minutes=0.05"]
    output = (tmp_path / "output").open("wb+")
    process = subprocess.Popen([*command, *elastic, f"run.dir={run}"], stdout=output, stderr=output)
    until(lambda: step_of(run) >= 25, process)
    os.kill(ranks_of(run)[2], signal.SIGKILL)
    assert process.wait(900) == 0
    output.seek(0)
    said = output.read().decode()
    configs = [path.read_text() for path in sorted(run.glob("config*.yaml"))]
    assert ["num_processes: 3" in text for text in configs].count(True) == 1, said
    assert "with 3 ranks" in said
    assert "going on, with 4 ranks" in said
    rows, expected = (read_rows(path / "metrics.jsonl") for path in (run, alone))
    assert [row["step"] for row in rows] == list(range(1, 151))
    for row, other in zip(rows, expected, strict=True):
        assert row["train/loss"] == pytest.approx(other["train/loss"], abs=1e-5)
        assert row["tokens"] == other["tokens"]
    loaders = [Saved(path / "checkpoints" / "step_150").meta["loader"] for path in (run, alone)]
    assert loaders[0] == loaders[1]
    spent = read_goodput(run)
    assert spent is not None
    assert spent.starts == 3
    assert spent.lost_steps >= 1
