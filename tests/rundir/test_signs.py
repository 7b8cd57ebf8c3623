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
from forge.rundir.signs import Sign, signs_of_life, silent_ranks

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
    """And the run goes on where no file can be written."""
    (tmp_path / "alive").write_text("")
    with signs_of_life(tmp_path, 0, 2, every=0.05, silent=0.2):
        until(lambda: "rank 1 has given no sign of life for " in caplog.text)
    assert Sign(rank=1, time=0.0).silence(61) == "rank 1 has given no sign of life for 1 min 1 s"
