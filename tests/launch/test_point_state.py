"""The state of a point, from its run directory, the ledger, and what Slurm says of its job."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_local import wait_for

from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import state as survey
from forge.launch.sweep.directory import Point
from forge.launch.sweep.state import at_work, job_of, process_of, state_of
from forge.rundir.lock import Lock, in_use

RESULT = {
    "status": "finished",
    "reason": "end",
    "step": 3,
    "metrics": {},
    "config": "config.yaml",
    "objective": {"value": 1.0},
}


@pytest.fixture
def point(tmp_path: Path) -> Point:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("seed: 1\n")
    return Point(number=0, hash="0", slug="x", path=path, overrides=())


def begun(point: Point) -> Point:
    (point.path / "attempts.jsonl").write_text('{"event": "start", "step": 0}\n')
    return point


def finished(point: Point) -> Point:
    (point.path / "result.json").write_text(json.dumps(RESULT))
    return begun(point)


@pytest.mark.parametrize(
    ("event", "code", "state"),
    [
        ("", None, "waiting"),
        ("submitted", None, "waiting"),
        ("cancelled", None, "cancelled"),
        ("ended", 0, "waiting"),
        ("ended", 1, "failed"),
        ("ended", 2, "failed"),
        ("ended", 137, "failed"),
        ("ended", 130, "waiting"),
        ("ended", 143, "waiting"),
    ],
)
def test_before_it_has_begun(event: str, code: int | None, state: str, point: Point) -> None:
    assert state_of(replace(point, event=event, code=code)) == state
    (point.path / "config.yaml").unlink()
    assert state_of(replace(point, event=event, code=code)) == state


@pytest.mark.parametrize(
    ("event", "code", "state"),
    [
        ("started", None, "partial"),
        ("ended", 143, "partial"),
        ("ended", 137, "failed"),
        ("ended", 1, "failed"),
        ("cancelled", 143, "cancelled"),
    ],
)
def test_once_it_has_begun(event: str, code: int | None, state: str, point: Point) -> None:
    assert state_of(replace(begun(point), event=event, code=code)) == state


def test_what_has_told_why_it_failed(point: Point) -> None:
    (begun(point).path / "error.json").write_text("{}")
    assert state_of(point) == "failed"


@pytest.mark.parametrize(
    ("event", "code"), [("", None), ("cancelled", None), ("ended", 1), ("ended", 143)]
)
def test_what_is_done_is_done(event: str, code: int | None, point: Point) -> None:
    assert state_of(replace(finished(point), event=event, code=code)) == "done"


def test_who_holds_the_directory_works_on_it(point: Point) -> None:
    assert not in_use(point.path)
    with Lock(finished(point).path):
        assert state_of(point) == "running"
        found = process_of(point)
        assert found is not None
        assert (found.pid, found.host) == (os.getpid(), platform.node())
    assert state_of(point) == "done"
    assert state_of(point, lambda _: True) == "running"


def test_ranks_that_are_starting_work_on_it(point: Point) -> None:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(point.path)])
    started = replace(point, event="started", pid=rank.pid, host=platform.node())
    try:
        wait_for(lambda: at_work(started))
        assert not at_work(replace(started, host="another"))
        assert not at_work(replace(started, event="ended"))
        assert not at_work(replace(started, path=point.path.parent / "other"))
    finally:
        rank.kill()
        rank.wait()
    assert not at_work(started)


JOB = {"event": "submitted", "job": "7_0", "cluster": "slurm"}


@pytest.mark.parametrize(
    ("made", "said", "state"),
    [
        (None, "PENDING", "queued"),
        (None, "CONFIGURING", "queued"),
        (None, "RUNNING", "running"),
        (begun, "PENDING", "queued"),
        (begun, "COMPLETING", "running"),
        (begun, None, "partial"),
        (begun, "FAILED", "failed"),
        (begun, "NODE_FAIL", "failed"),
        (begun, "OUT_OF_MEMORY", "failed"),
        (begun, "TIMEOUT", "partial"),
        (begun, "COMPLETED", "partial"),
        (begun, "CANCELLED", "cancelled"),
        (finished, "CANCELLED", "done"),
        (None, None, "waiting"),
    ],
)
def test_with_what_slurm_says(
    made, said: str | None, state: str, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        slurm, "states", lambda jobs: asked.append(set(jobs)) or ({"7_0": said} if said else {})
    )
    one = replace(made(point) if made else point, **JOB)
    found = survey.survey([one])
    assert found.states == {0: state}
    assert asked == ([] if made is finished else [{"7_0"}])


def test_slurm_that_does_not_answer(point: Point, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_):
        raise slurm.NoAnswer("squeue fails: no route.")

    monkeypatch.setattr(slurm, "states", silent)
    found = survey.survey([replace(begun(point), **JOB)])
    assert (found.states, found.silent) == ({0: "partial"}, "squeue fails: no route.")


def test_a_job_whose_submitter_was_killed_before_it_could_note_it(point: Point) -> None:
    assert job_of(point) is None
    (point.path / "job.json").write_text('{"job": "9"}')
    assert job_of(point) == "9"
    assert job_of(replace(point, event="started")) is None, "since then it was started here"
    assert job_of(replace(point, cluster="local", job="3")) is None


def test_a_lock_of_another_name(tmp_path: Path) -> None:
    with Lock(tmp_path, "sweep.lock"):
        assert in_use(tmp_path, "sweep.lock")
        assert not in_use(tmp_path)
        with pytest.raises(ValueError, match=r"is in use by process .* Leave it"):
            Lock(tmp_path, "sweep.lock", advice="Leave it").acquire(patience=0)
