"""Sweeps, searches and runs as jobs of a real Slurm, by the commands that a user types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers.tiny import TINY
from one_box import OneBox
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("one_box_slurm")]
Verb = Callable[..., "subprocess.Popen[str]"]
SLURM = ["launch=slurm", "launch.gpus_per_node=0"]


@pytest.fixture
def verb(tmp_path: Path, one_box_slurm: OneBox) -> Verb:
    """Start a verb of forge in a directory of its own."""

    def start(name: str, *arguments: str) -> subprocess.Popen[str]:
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
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


@pytest.fixture
def small(text_file: Path) -> list[str]:
    return [*TINY, "model.n_layers=1", "data=text", f"data.path={text_file}", *SLURM]


def said(process: subprocess.Popen[str], code: int = 0) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == code, out
    return out


def submitted(sweep: Path) -> list[dict[str, Any]]:
    ledger = sweep / "ledger.jsonl"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == "submitted"]


@pytest.mark.nightly
def test_the_submitting_process_is_killed_and_the_same_command_picks_up(
    verb: Verb, small: list[str], tmp_path: Path
) -> None:
    """With one more value: its point alone is submitted, and the end of all is waited for."""
    command = ["-m", *small, "launch.wait=true", "sweep.name=seeds"]
    sweep = tmp_path / "sweeps" / "seeds"
    first = verb("train", *command, "seed=1,2")
    deadline = time.monotonic() + 120
    while len(submitted(sweep)) < 2:
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    first.kill()
    first.communicate()
    out = said(verb("train", *command, "seed=1,2,3"))
    assert out.count("submitted") == 1, out
    assert "(3 points: 3 done)" in out
    jobs = [(row["number"], row["job"].partition("_")[2]) for row in submitted(sweep)]
    assert jobs == [(0, "0"), (1, "1"), (2, "")]
    for path in (sweep / "points").iterdir():
        rows = map(json.loads, (path / "attempts.jsonl").read_text().splitlines())
        assert [row["event"] for row in rows] == ["start", "end"]
    assert "3 done" in said(verb("status", "sweeps/seeds"))


@pytest.mark.nightly
def test_one_run_from_the_command_line_is_what_was_printed_before(
    verb: Verb, small: list[str], tmp_path: Path
) -> None:
    out = said(verb("train", *small, "run.dir=one", "launch.dry_run=true"))
    verdict, _, printed = out.partition("\n")
    assert verdict.startswith("sbatch --test-only says: Job ")
    assert printed.startswith("#!/bin/bash\n")
    assert not (tmp_path / "one").exists()
    out = said(verb("train", *small, "run.dir=one", "launch.wait=true"))
    job = json.loads((tmp_path / "one" / "job.json").read_text())["job"]
    assert f"submitted: job {job}" in out
    script = tmp_path / "one" / "jobs" / f"{job}_submission.sh"
    assert script.read_text().strip() == printed.strip()
    assert json.loads((tmp_path / "one" / "result.json").read_text())["status"] == "finished"


@pytest.mark.nightly
def test_a_run_in_the_queue_is_not_submitted_twice_and_can_be_cancelled(
    verb: Verb, tmp_path: Path
) -> None:
    """It is held, so that it never starts."""
    command = [*TINY, *SLURM, "launch.sbatch.hold=''", "run.dir=held"]
    out = said(verb("train", *command))
    job = json.loads((tmp_path / "held" / "job.json").read_text())["job"]
    assert f"submitted: job {job}" in out
    refused = said(verb("train", *command, "train.max_steps=8"), 2)
    assert f"the run is in Slurm's queue already: job {job} is PENDING." in refused
    assert not (tmp_path / "held" / "config.2.yaml").exists()
    said(verb("cancel", "held"))
    query = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    assert subprocess.run(query, capture_output=True, text=True).stdout.strip() == "CANCELLED"


@pytest.mark.nightly
def test_trials_of_a_search_are_arrays_of_jobs(
    verb: Verb, small: list[str], tmp_path: Path
) -> None:
    """Two at a time, of which one has no learning rate that can be; then one more."""
    options = [text for text in small if not text.startswith("optimizer.lr=")]
    options += ["launch.wait=true", "sweeper.n_jobs=2", "sweep.name=tuned"]
    space = ["sweeper=optuna", "sweeper.sampler=grid", "optimizer.lr=-1,0.01,0.02"]
    out = said(verb("train", "-m", *options, *space), 1)
    assert "(3 trials: 2 done, 1 failed)" in out
    sweep = tmp_path / "sweeps" / "tuned"
    assert len(submitted(sweep)) == 2
    storage = JournalStorage(JournalFileBackend(str(sweep / "optuna.journal")))
    trials = optuna.load_study(study_name="tuned", storage=storage).trials
    reached = {trial.params["optimizer.lr"]: trial.value for trial in trials}
    assert reached.keys() == {"-1", "0.01", "0.02"}
    assert reached.pop("-1") is None
    results = [json.loads(file.read_text()) for file in sweep.glob("points/*/result.json")]
    assert {result["objective"]["value"] for result in results} == set(reached.values())
