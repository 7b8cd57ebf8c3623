"""A rank that gives no sign of life is named in the log of the run, and by forge.status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forge import status
from forge.rundir.lock import Lock
from forge.rundir.signs import FIRST, Sign, signs_of_life, silent_ranks, stalled
from forge.training.callbacks.progress import Steps

RANK = """
import sys, time, pathlib
from forge.rundir.signs import signs_of_life
with signs_of_life(pathlib.Path(sys.argv[1]), 1, 2, every=0.05, silent=0.4):
    print("begun", flush=True)
    sys.stdin.read()
"""


def until(holds, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_frozen_rank_is_named_until_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; and nothing is said of one that has ended, nor left of the files."""
    stale = tmp_path / "alive" / "rank_3"
    stale.parent.mkdir()
    stale.write_text("{}")
    with signs_of_life(tmp_path, 0, 2, every=0.05, silent=0.4):
        assert not stale.exists()  # of an earlier start with more ranks
        words = [sys.executable, "-c", RANK, str(tmp_path)]
        other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        until(lambda: not caplog.text or "again" in caplog.text)  # it may have taken long to begin
        caplog.clear()
        other.send_signal(signal.SIGSTOP)
        who = f"rank 1 (process {other.pid} on {os.uname().nodename})"
        until(lambda: f"{who} has given no sign of life for " in caplog.text)
        time.sleep(0.5)
        assert caplog.text.count("no sign of life") == 1
        other.send_signal(signal.SIGCONT)
        until(lambda: "rank 1 gives signs of life again" in caplog.text)
        other.stdin.close()
        assert other.wait(60) == 0
        caplog.clear()
        time.sleep(0.6)
        assert not caplog.text
    assert not stale.parent.exists()


def test_the_status_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the newest of the signs where there is one: another machine's clock may be wrong."""
    monkeypatch.chdir(tmp_path)
    run, now = tmp_path / "run", time.time()
    (run / "alive").mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1\ntrain: {max_steps: 10}\n")

    def sign(rank: int, seconds: float) -> None:
        file = run / "alive" / f"rank_{rank}"
        file.write_text(json.dumps({"host": "node7", "process": 40 + rank}))
        os.utime(file, (now + seconds, now + seconds))

    for ahead in (0, 3000):
        sign(0, ahead)
        sign(1, ahead - 55)
        assert not silent_ranks(run)
        sign(1, ahead - 240)
        said = "rank 1 (process 41 on node7) has given no sign of life for 4 min"
        assert silent_ranks(run) == [said]
    assert status.main(["run"]) == 0
    assert said not in capsys.readouterr().out  # it does not run
    with Lock(run):
        assert status.main(["run"]) == 0
        assert f"  waits          {said}\n" in capsys.readouterr().out
        assert status.main(["run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["silent"] == [said]
    for rank in range(2):
        sign(rank, -120)
    assert [text.split()[1] for text in silent_ranks(run)] == ["0", "1"]


def test_a_rank_that_has_never_come_is_named_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the run continues where no file can be written."""
    (tmp_path / "alive").write_text("")
    with signs_of_life(tmp_path, 0, 2, every=0.05, silent=0.2):
        until(lambda: "rank 1 has given no sign of life for " in caplog.text)
    assert Sign(rank=1, time=0.0).silence(61) == "rank 1 has given no sign of life for 1 min 1 s"


def test_a_run_that_lives_and_makes_no_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After five times the longest time between two steps, and two minutes; not once it ends."""
    monkeypatch.chdir(tmp_path)
    run, now = tmp_path / "run", time.time()
    (run / "alive").mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1\ntrain: {max_steps: 10}\n")
    for rank in range(2):
        file = run / "alive" / f"rank_{rank}"
        file.write_text(json.dumps({"host": "node7", "process": 40 + rank}))
        os.utime(file, (now, now))
    step = run / "alive" / "step_0"

    def made(longest: float, ago: float) -> str:
        step.write_text(json.dumps({"step": 7, "longest": longest}))
        os.utime(step, (now - ago, now - ago))
        return stalled(run)

    assert not stalled(run)  # it has not begun
    assert not made(3.0, 100)
    assert not made(100.0, 480)
    assert not made(0.0, FIRST - 10)
    first = "no step was finished for 15 min (of the first ones), and all 2 ranks give signs of"
    assert made(0.0, 900).startswith(first)
    said = made(3.0, 240)
    before = "(one took at most 3 s)"
    assert said == f"no step was finished for 4 min {before}, and all 2 ranks give signs of life"
    assert "(one took at most 1 s)" in made(0.04, 240)
    assert made(3.0, 240) == said
    with Lock(run):
        assert status.main(["run"]) == 0
        assert f"  hangs?         {said}\n" in capsys.readouterr().out
        assert status.main(["run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["stalled"] == said
    os.utime(run / "alive" / "rank_1", (now - 200, now - 200))
    assert silent_ranks(run)
    assert not stalled(run)  # the rank that is silent says why
    Steps(run, 0).end()
    assert not step.exists()


def test_what_a_rank_says_of_its_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step, which may compile, is not the longest; files are written now and then."""
    (tmp_path / "alive").mkdir()
    at = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    steps, file = Steps(tmp_path, 3, every=20), tmp_path / "alive" / "step_3"
    steps.begin(5)
    written = [json.loads(file.read_text())]
    for step, at[0] in enumerate((300.0, 302.0, 305.0, 325.0), start=6):
        steps.finished(step)
        written.append(json.loads(file.read_text()))
    assert [one["step"] for one in written] == [5, 6, 7, 7, 9]
    assert [one["longest"] for one in written] == [0, 0, 2, 2, 20]
