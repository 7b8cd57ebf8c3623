"""A search by Optuna of which the trials are jobs of a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from tiny import TINY

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("one_box_slurm")]


def test_trials_are_arrays_of_jobs_and_their_objectives_come_back(tmp_path: Path) -> None:
    """Two at a time, of which one has no learning rate that can be; then one more."""
    (tmp_path / "text.txt").write_text(
        "".join(f"{i} the sea, a ship and {i * i % 97} whales\n" for i in range(300))
    )
    slurm = [
        "launch=slurm",
        "launch.gpus_per_node=0",
        "launch.wait=true",
        "sweeper.n_jobs=2",
        "sweep.name=tuned",
    ]
    space = ["sweeper=optuna", "sweeper.sampler=grid", "optimizer.lr=-1,0.01,0.02"]
    options = [text for text in TINY if not text.startswith("optimizer.lr=")]
    command = [
        sys.executable,
        "-m",
        "forge.train",
        "-m",
        *options,
        "model.n_layers=1",
        "data=text",
        "data.path=text.txt",
        *slurm,
        *space,
    ]
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout
    assert "(3 trials: 2 done, 1 failed)" in done.stdout
    sweep = tmp_path / "sweeps" / "tuned"
    ledger = [json.loads(line) for line in (sweep / "ledger.jsonl").read_text().splitlines()]
    assert sum(line["event"] == "submitted" for line in ledger) == 2
    trials = optuna.load_study(
        study_name="tuned",
        storage=JournalStorage(JournalFileBackend(str(sweep / "optuna.journal"))),
    ).trials
    assert {trial.params["optimizer.lr"]: trial.state.name for trial in trials} == {
        "-1": "FAIL",
        "0.01": "COMPLETE",
        "0.02": "COMPLETE",
    }
    results = [
        json.loads(file.read_text())["objective"]["value"]
        for file in sweep.glob("points/*/result.json")
    ]
    assert sorted(trial.value for trial in trials if trial.value is not None) == sorted(results)
