"""A search by Optuna whose process is killed, and the same command again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cheap
import optuna
import pytest
from test_optuna import search, study

pytestmark = pytest.mark.nightly

OPTIONS = [
    *(
        "sweeper=optuna",
        "sweeper.n_trials=12",
        "sweeper.seed=1",
        "launch.jobs=2",
        "run.device=cpu",
        "eval.enabled=true",
    ),
    *("optimizer.lr=tag(log, interval(1e-4, 1e-2))", "optimizer.weight_decay=interval(0, 0.5)"),
]


def started(folder: Path, *command: str, seconds: float = 0.0) -> subprocess.Popen[str]:
    tests = Path(cheap.__file__).parents[1]
    paths = [
        str(tests / "launch"),
        str(tests.parent),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CHEAP_SECONDS": str(seconds)}
    environ.pop("WORLD_SIZE", None)
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trials(sweep: Path) -> list[optuna.trial.FrozenTrial]:
    return study(sweep.name, str(sweep.parent)).trials


def test_twelve_trials_of_which_one_fails_killed_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on to twelve, and they are those of a search that nobody has disturbed, which is the
    one in this process.
    """
    command = [cheap.__file__, "-m", "sweep.name=killed", *OPTIONS]
    ledger = tmp_path / "sweeps" / "killed" / "ledger.jsonl"
    first = started(tmp_path, *command, seconds=0.3)
    assert first.stdout is not None
    while (
        not ledger.exists()
        or sum(json.loads(line)["event"] == "started" for line in ledger.read_text().splitlines())
        < 5
    ):
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    running = [trial.number for trial in trials(ledger.parent) if trial.state.name == "RUNNING"]
    assert running
    out, _ = (second := started(tmp_path, *command)).communicate(timeout=120)
    assert second.returncode == 1, out
    assert "(12 trials: 11 done, 1 failed)" in out
    assert f"       {cheap.BAD}\n" in out

    found = trials(ledger.parent)
    replaced = {trial.user_attrs.get("instead_of") for trial in found}
    assert {
        trial.number: trial.state.name for trial in found if trial.number in replaced
    } == dict.fromkeys(running, "FAIL")
    kept = [trial for trial in found if trial.number not in replaced]
    assert [trial.state.name for trial in kept].count("COMPLETE") == 11
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sum(event["event"] == "point" for event in events) == 12

    monkeypatch.chdir(tmp_path)
    assert search(*OPTIONS[1:], run=cheap.Here(), name="whole") == 1
    whole = trials(tmp_path / "sweeps" / "whole")
    assert [(trial.params, trial.value) for trial in kept] == [
        (trial.params, trial.value) for trial in whole
    ]
