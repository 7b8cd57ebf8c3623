"""`python -m forge.cancel`: points of a sweep or all of it, here and in Slurm's queue; what runs
saves and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forge import cancel
from forge.launch.slurm import queue
from forge.launch.sweep.directory import LOCK, SweepDirectory

Capture = pytest.CaptureFixture[str]
HOLDER = """
import json, os, signal, sys, time
from pathlib import Path
from forge.rundir.lock import Lock
place, name = Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with Lock(place, name):
    (place / "ready").touch()
    time.sleep(60)
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepDirectory:
    monkeypatch.chdir(tmp_path)
    made = SweepDirectory(tmp_path / "mine")
    made.begin(["seed=1,2,3"], ["forge.train"])
    for seed in (1, 2, 3):
        point = made.add(
            hash=f"{seed:032d}", overrides=[f"seed={seed}"], varied={"seed": str(seed)}
        )
        point.path.mkdir(parents=True)
        (point.path / "config.yaml").write_text("seed: 1\ntrain:\n  max_steps: 3\n")
        (point.path / "attempts.jsonl").write_text('{"event": "start", "step": 0}\n')
    result = {"status": "finished", "reason": "end", "step": 3, "metrics": {}}
    result |= {"config": "config.yaml", "objective": {"value": 1}}
    (made.points()[0].path / "result.json").write_text(json.dumps(result))
    return made


def holder(place: Path, name: str = "run.lock") -> subprocess.Popen[bytes]:
    """A process that holds a lock, and ends with 7 when it is told to."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(place), name])
    while not (place / "ready").exists():
        assert process.poll() is None
    return process


def events(sweep: SweepDirectory) -> list[str]:
    return [point.event for point in sweep.points()]


def test_one_point_that_runs(sweep: SweepDirectory, capsys: Capture) -> None:
    process = holder(sweep.points()[1].path)
    assert cancel.main(["mine", "1"]) == 0
    assert process.wait(timeout=20) == 7
    assert capsys.readouterr().out == (
        f"#001 cancelled seed=2   process {process.pid} saves and ends\n"
        "the same command with sweep.retry=true takes them up again\n"
    )
    assert events(sweep) == ["", "cancelled", ""]


def test_all_of_it_with_the_command_that_starts_points(
    sweep: SweepDirectory, capsys: Capture
) -> None:
    command, rank = holder(sweep.path, LOCK), holder(sweep.points()[2].path)
    assert cancel.main(["mine"]) == 0
    assert (command.wait(timeout=20), rank.wait(timeout=20)) == (7, 7)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "#001 cancelled seed=2   it was partial",
        f"#002 cancelled seed=3   process {rank.pid} saves and ends",
    ]
    assert events(sweep) == ["", "cancelled", "cancelled"]
    assert cancel.main(["mine"]) == 0
    left = "there is nothing left to cancel: 3 points: 1 done, 2 cancelled\n"
    assert capsys.readouterr().out == left


def test_a_single_run(sweep: SweepDirectory, capsys: Capture) -> None:
    path = sweep.points()[1].path
    process = holder(path)
    assert cancel.main([str(path)]) == 0
    assert process.wait(timeout=20) == 7
    assert capsys.readouterr().out == f"process {process.pid} saves and ends\n"


def test_what_runs_elsewhere_is_not_reached(sweep: SweepDirectory, capsys: Capture) -> None:
    places = {
        (sweep.points()[1].path, "run.lock", "1"): "it runs",
        (sweep.path, LOCK, ""): "the command that starts points runs",
    }
    for (place, name, number), said in places.items():
        process = holder(place, name)
        (place / name).write_text('{"host": "far", "pid": 5}\n')
        assert cancel.main(["mine", *number.split()]) == 1
        assert f"{said} on far, process 5; type this there" in capsys.readouterr().out
        process.kill()
        process.wait()


def test_jobs_of_slurm(
    sweep: SweepDirectory, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        sweep.note("submitted", number, job=f"7_{number}", cluster="slurm")
    ended: list[str] = []
    monkeypatch.setattr(queue, "job_states", lambda jobs: {"7_1": "PENDING", "7_2": "RUNNING"})
    monkeypatch.setattr(queue, "cancel_jobs", ended.extend)
    assert cancel.main(["mine"]) == 0
    assert ended == ["7_1", "7_2"]
    assert capsys.readouterr().out.splitlines()[:2] == [
        "#001 cancelled seed=2   job 7_1, which was PENDING",
        "#002 cancelled seed=3   job 7_2, which was RUNNING",
    ]


def test_what_is_refused(
    sweep: SweepDirectory, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {
        "points": "points is no sweep: there is no such directory.",
        "": "which sweep, or run?\n     -> python -m forge.cancel sweeps/<name>\n",
        "mine one": "a point is given by its number.\n     -> python -m forge.cancel mine 3\n",
        "mine": "Slurm does not answer: squeue fails: no route.\n     -> again when it does",
    }

    def silent(_):
        raise queue.NoAnswer("squeue fails: no route.")

    sweep.note("submitted", 1, job="7_1", cluster="slurm")
    monkeypatch.setattr(queue, "job_states", silent)
    for typed, said in refused.items():
        assert cancel.main(typed.split()) == 2
        assert said in capsys.readouterr().err
    assert events(sweep) == ["", "submitted", ""]
