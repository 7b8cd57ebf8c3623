"""A sweep as jobs of a real Slurm, by the commands that a user types."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_box import OneBox
from tiny import TINY

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("one_box_slurm")]
Verb = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def verb(tmp_path: Path, one_box_slurm: OneBox) -> Verb:
    """Start a verb of forge in a directory of its own."""
    (tmp_path / "text.txt").write_text(
        "".join(f"{i} the sea, a ship and {i * i % 97} whales\n" for i in range(300))
    )

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        paths = [
            str(Path(__file__).parent),
            str(Path(__file__).parents[2]),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", f"forge.{name}", *arguments]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def said(process: subprocess.Popen[str], code: int = 0) -> str:
    out, _ = process.communicate(timeout=180)
    assert process.returncode == code, out
    return out


def ledger(sweep: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sweep / "ledger.jsonl").read_text().splitlines()]


def test_the_submitting_process_is_killed_and_the_same_command_picks_up(
    verb: Verb, tmp_path: Path
) -> None:
    """With one more value: its point alone is submitted, and the end of all is waited for."""
    slurm = ["launch=slurm", "launch.gpus_per_node=0", "launch.wait=true", "sweep.name=seeds"]
    command = ["-m", *TINY, "model.n_layers=1", "data=text", "data.path=text.txt", *slurm]
    sweep = tmp_path / "sweeps" / "seeds"
    first = verb("train", *command, "seed=1,2")
    assert first.stdout is not None
    deadline = time.monotonic() + 60
    while (
        not (sweep / "ledger.jsonl").exists()
        or sum(line["event"] == "submitted" for line in ledger(sweep)) < 2
    ):
        assert time.monotonic() < deadline
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    out = said(verb("train", *command, "seed=1,2,3"))
    assert out.count("submitted") == 1, out
    assert "(3 points: 3 done)" in out
    submitted = [
        (line["number"], line["job"]) for line in ledger(sweep) if line["event"] == "submitted"
    ]
    assert [number for number, _ in submitted] == [0, 1, 2]
    assert submitted[0][1].endswith("_0")
    assert submitted[1][1].endswith("_1")
    assert "_" not in submitted[2][1]
    for path in (sweep / "points").iterdir():
        assert [
            json.loads(line)["event"] for line in (path / "attempts.jsonl").read_text().splitlines()
        ] == ["start", "end"]
    assert "3 done" in said(verb("status", "sweeps/seeds"))


def test_one_run_from_the_command_line_is_what_was_printed_before(
    verb: Verb, tmp_path: Path
) -> None:
    command = [
        *TINY,
        "model.n_layers=1",
        "data=text",
        "data.path=text.txt",
        "launch=slurm",
        "launch.gpus_per_node=0",
        "run.dir=one",
    ]
    verdict, _, printed = said(verb("train", *command, "launch.dry_run=true")).partition("\n")
    assert verdict.startswith("sbatch --test-only says: Job ")
    assert printed.startswith("#!/bin/bash\n")
    assert not (tmp_path / "one").exists()
    out = said(verb("train", *command, "launch.wait=true"))
    job = json.loads((tmp_path / "one" / "job.json").read_text())["job"]
    assert f"submitted: job {job}" in out
    assert (
        tmp_path / "one" / "jobs" / f"{job}_submission.sh"
    ).read_text().strip() == printed.strip()
    assert json.loads((tmp_path / "one" / "result.json").read_text())["status"] == "finished"


def test_a_run_in_the_queue_is_not_submitted_twice_and_can_be_cancelled(
    verb: Verb, tmp_path: Path
) -> None:
    """It is held, so that it never starts."""
    command = [
        *TINY,
        "launch=slurm",
        "launch.gpus_per_node=0",
        "launch.sbatch.hold=''",
        "run.dir=held",
    ]
    out = said(verb("train", *command))
    job = json.loads((tmp_path / "held" / "job.json").read_text())["job"]
    assert f"submitted: job {job}" in out
    refused = said(verb("train", *command, "train.max_steps=8"), 2)
    assert f"the run is in Slurm's queue already: job {job} is PENDING." in refused
    assert not (tmp_path / "held" / "config.2.yaml").exists()
    said(verb("cancel", "held"))
    shown = subprocess.run(
        ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"],
        capture_output=True,
        text=True,
    )
    assert shown.stdout.strip() == "CANCELLED"
