"""forge.sweep: what the command does, and its points as objects."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import fake_worker
import pytest
from fake_worker import FAILS, HANGS
from helpers.refusing import SMALL

import forge
from forge.launch.sweep.directory import SweepDirectory

OPTIONS = [*SMALL, "run.objective=train/loss", "eval.enabled=false"]


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.rundir.provenance.diff", lambda: "")
    monkeypatch.setattr(sys, "executable", fake_worker.interpreter(tmp_path))


def test_a_sweep_gives_its_points_back(capsys: pytest.CaptureFixture[str]) -> None:
    """As typed with -m, whose directory it shares; what is done is not run again."""
    found = forge.sweep(OPTIONS, over={"optimizer.lr": [1e-3, 3e-3], "seed": range(1, 3)})
    assert [one.varied for one in found.points] == [
        {"optimizer.lr": lr, "seed": seed} for lr in ("0.001", "0.003") for seed in ("1", "2")
    ]
    results = [one.result for one in found.points]
    assert [result and result.objective for result in results] == [1.0, 0.5, 1.0, 0.5]
    assert [one.state for one in found.points] == ["done"] * 4
    best = found.best
    assert best is not None
    assert (best.number, best.varied["seed"]) == (1, "2")
    assert best.result is not None
    assert best.result.history("train/loss")[-1] == {"step": 3, "train/loss": 3.5}
    assert repr(found) == "sweeps/tiny (4 points: 4 done)"
    frame = found.frame()
    assert frame["train/loss"].tolist() == [1.0, 0.5, 1.0, 0.5]
    assert found.report(metric="train/loss").arms["n"].tolist() == [2, 2]
    assert forge.report(found, metric="train/loss").arms["n"].tolist() == [2, 2]
    assert len(forge.report([best, best.result], metric="train/loss").runs) == 1
    capsys.readouterr()
    again = forge.sweep([*OPTIONS, "optimizer.lr=0.001,0.003", "seed=1,2"])
    assert again == found
    assert " starts " not in capsys.readouterr().out


def test_a_point_that_fails_is_among_the_others() -> None:
    options = {"run": {"objective": "train/loss", "device": "cpu"}, "eval.enabled": False}
    found = forge.sweep(options, {"seed": [1, FAILS]})
    assert [(one.state, one.why) for one in found.points] == [
        ("done", ""),
        ("failed", "it cannot continue"),
    ]
    assert found.points[1].result is None


def test_an_interrupted_sweep_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        while not list(Path("sweeps").glob("tiny/points/*/ready")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    found = forge.sweep(OPTIONS, {"seed": [HANGS, 1]})
    assert [one.state for one in found.points] == ["partial", "waiting"]
    assert "the same call of forge.sweep continues" in capsys.readouterr().out
    (found.points[0].run_dir / "go").touch()
    again = forge.sweep(OPTIONS, {"seed": [HANGS, 1]})
    assert [one.state for one in again.points] == ["done", "done"]
    assert len(SweepDirectory(again.path).commands()) == 2


def test_all_problems_come_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(forge.ConfigError, match=r"optimizer\.lrr") as refused:
        forge.sweep([*OPTIONS, "model.dimm=3"], {"optimizer.lrr": [1, 2], "seed": [1, 2]})
    assert {"optimizer.lrr", "model.dimm"} == {one.option for one in refused.value.problems}
    for values in ([], "1,2"):
        with pytest.raises(forge.ConfigError, match="it is no list of values"):
            forge.sweep(OPTIONS, {"seed": values})
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(forge.ConfigError, match="another launcher has started the ranks"):
        forge.sweep(OPTIONS, {"seed": [1, 2]})
    assert not Path("sweeps").exists()
