"""A run in the background of a Python process, and how a notebook shows one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fake_worker import BREAKS, FAILS, HANGS, STARTS, interpreter
from helpers.fake_display import Display
from helpers.refusing import SMALL

import forge
from forge.launch.local import notebook
from forge.rundir import outcome


@pytest.fixture(autouse=True)
def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.rundir.provenance.diff", lambda: "")
    monkeypatch.setattr(sys, "executable", interpreter(tmp_path))


def begin(seed: int, *more: str) -> Any:
    run = forge.train(
        forge.compose([*SMALL, f"seed={seed}", "run.dir=run", *more]), background=True
    )
    if seed in (HANGS, STARTS):
        wait_for(run.run_dir / "ready")
    return run


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


def test_a_run_ends_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    run = begin(2)
    result = run.wait()
    assert (run.status, result.status, result.step, result.objective) == (
        "finished",
        "finished",
        3,
        0.5,
    )
    assert run.tail() == "rank 0 says hello"
    rows = [{"step": step, "train/loss": 0.5 + step} for step in (1, 2, 3)]
    assert run.history("train/loss") == result.history("train/loss") == rows
    assert capsys.readouterr().out == "run directory: run\n"


def test_a_run_is_stopped_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """What interrupts this process and its children does not reach it."""
    run = begin(HANGS)
    while not (written := (run.run_dir / "ready").read_text()):  # it is there before its content
        time.sleep(0.01)
    pid = int(written)
    assert os.getpgid(pid) not in (os.getpgid(0), os.getpgid(os.getppid()))
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.01)
    assert run.status == "running"
    assert repr(run) == "running in run"
    assert run.stop().status == run.status == "stopped"
    assert repr(run) == "stopped after 3 steps in run"
    assert (
        "stopped after 3 steps, and nothing is saved; it begins again with: "
        in capsys.readouterr().out
    )
    (run.run_dir / "go").touch()
    again = forge.resume(run, background=True)
    assert again.run_dir == run.run_dir
    assert again.wait().status == "finished"
    assert again.stop().status == "finished"


def test_a_run_is_stopped_before_it_takes_signals(capsys: pytest.CaptureFixture[str]) -> None:
    result = begin(STARTS).stop()
    assert (result.status, result.reason, result.step) == ("stopped", "SIGTERM", 0)
    assert capsys.readouterr().out.endswith("begins again with: forge.resume('run')\n")


def test_a_run_fails() -> None:
    run = begin(FAILS)
    with pytest.raises(RuntimeError, match="run failed: it cannot continue"):
        run.wait()
    assert run.status == "failed"
    broken = forge.train(forge.compose([*SMALL, f"seed={BREAKS}"]), background=True)
    with pytest.raises(RuntimeError, match="its worker ended with exit code 3"):
        broken.watch()
    assert broken.tail(2) == "two\nthree"


def test_a_run_ends_with_its_process(tmp_path: Path) -> None:
    code = f"""
import sys, time, forge
from pathlib import Path
sys.executable = {sys.executable!r}
run = forge.train(forge.compose({[*SMALL, "seed=99", "run.dir=run"]!r}), background=True)
while not Path("run/ready").exists(): time.sleep(0.01)
"""
    python = str(Path(sys.prefix) / "bin" / "python")
    subprocess.run([python, "-c", code], check=True, cwd=tmp_path, timeout=60)
    wait_for(tmp_path / "run" / "result.json")
    result = outcome.read_result(tmp_path / "run")
    assert result is not None
    assert result.status == "stopped"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.inline=true", "run.inline=true keeps the run in this process"),
        ("launch=submitit_local", "it becomes a job, which is in the background"),
        ("", "its ranks have been started already"),
    ],
)
def test_what_has_no_background(
    override: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not override:
        for name, value in {
            "WORLD_SIZE": "2",
            "RANK": "1",
            "MASTER_ADDR": "h",
            "MASTER_PORT": "1",
        }.items():
            monkeypatch.setenv(name, value)
    config = forge.compose([*SMALL, *filter(None, [override])])
    with pytest.raises(forge.ConfigError, match=said) as refused:
        forge.train(config, background=True)
    assert refused.value.problems[0].fix
    assert not (tmp_path / "runs").exists()


def test_a_notebook_shows_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a run in another process, whose other words are printed."""
    assert not notebook.in_notebook()
    display = Display(monkeypatch)
    run = begin(HANGS)
    first, second, evaluation = (
        "step  1/20 | loss 3.1 | lr 1e-3",
        "step 10/20 | loss 2.9 | lr 1e-3",
        "step 10/20 | eval loss 2.5",
    )
    with (run.run_dir / "logs" / "output.log").open("a") as log:
        log.write(f"data: read\n{first}\n{second}\n{evaluation}\n  ended   by its user")
    threading.Timer(0.5, run._pass_on, [signal.SIGTERM]).start()
    assert run.watch().status == "stopped"
    assert display.shown == [[first, second, f"{second}\n{evaluation}"]]
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == ["run directory: run", "rank 0 says hello", "data: read"]
    assert printed[-1] == "  ended   by its user"


def test_an_interrupted_cell_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel gets SIGINT while it waits; before the run has begun nothing is to be kept."""
    Display(monkeypatch)

    def interrupt() -> None:
        wait_for(Path("run", "ready"))
        signal.raise_signal(signal.SIGINT)

    for seed in (HANGS, STARTS):
        threading.Thread(target=interrupt, daemon=True).start()
        config = forge.compose([*SMALL, f"seed={seed}", "run.dir=run"])
        if seed == HANGS:
            result = forge.train(config)
            assert (result.status, outcome.attempts(result.run_dir)[-1]["event"]) == (
                "stopped",
                "end",
            )
            result.run_dir.rename("before")
        else:
            with pytest.raises(KeyboardInterrupt):
                forge.train(config)
