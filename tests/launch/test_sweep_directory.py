"""The directory of a sweep: its ledger, and the state of a point by its run directory, the ledger,
and what Slurm says of its job.
"""

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

from forge.config.problems import ConfigError
from forge.launch.slurm import queue
from forge.launch.sweep.directory import (
    SWEEP,
    Point,
    SweepDirectory,
    example_sweeps,
    find_sweep,
    slug_of,
)
from forge.launch.sweep.state import at_work, last_job, point_state, process_of, survey
from forge.rundir.lock import Lock


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDirectory:
    made = SweepDirectory(tmp_path / "mine")
    made.begin(["seed=1,2"], ["forge.train", "-m", "seed=1,2"])
    return made


def add(sweep: SweepDirectory, seed: int, arm: str | None = None) -> Point:
    varied = {"seed": str(seed)}
    return sweep.add(hash=f"{seed:032d}", overrides=[f"seed={seed}"], varied=varied, arm=arm)


def test_the_ledger_has_points_in_their_order_and_the_last_that_happened(
    sweep: SweepDirectory,
) -> None:
    first, second = add(sweep, 1), add(sweep, 2, arm="wide")
    assert sweep.points() == [first, second]
    assert second.path == sweep.path / "points" / "001_wide_seed-2_00000000"
    sweep.note("submitted", 1, job="12_0", cluster="slurm")
    sweep.note("started", 1, pid=5, host="here")
    sweep.note("ended", 7, code=0)
    started = replace(
        second, event="started", job="12_0", cluster="slurm", pid=5, host="here", code=None
    )
    assert sweep.points() == [first, started]
    for event, seen in (("cancelled", "cancelled"), ("ended", "cancelled"), ("started", "started")):
        sweep.note(event, 1)
        assert sweep.points()[1].event == seen
    sweep.note("ended", 1, code=3)
    assert sweep.points()[1] == replace(started, event="ended", code=3)


def test_a_moved_sweep_with_a_torn_line_goes_on(sweep: SweepDirectory, tmp_path: Path) -> None:
    add(sweep, 1)
    with (sweep.path / "ledger.jsonl").open("a") as file:
        file.write('{"event": "point", "num')
    sweep.path.rename(tmp_path / "moved")
    moved = find_sweep(tmp_path / "moved")
    moved.begin(["seed=3"], ["forge.train", "-m", "seed=3"])
    add(moved, 2)
    assert moved.name == "mine"
    assert [(point.number, point.path.parents[1]) for point in moved.points()] == [
        (0, moved.path),
        (1, moved.path),
    ]
    assert [command["overrides"] for command in moved.commands()] == [["seed=1,2"], ["seed=3"]]


@pytest.mark.parametrize(
    ("varied", "arm", "slug"),
    [
        ({"optimizer.lr": "0.001", "seed": "1"}, None, "lr-0.001_seed-1"),
        ({"a.lr": "1", "b.lr": "2"}, None, "a.lr-1_b.lr-2"),
        ({"data.path": "/a/b c/é.txt"}, "wide", "wide_path--a-b-c-.txt"),
        ({}, None, "point"),
        ({"run.name": "x" * 200}, None, "name-" + "x" * 75),
        ({"run.name": "../../.."}, None, "name"),
    ],
)
def test_a_readable_name(varied: dict[str, str], arm: str | None, slug: str) -> None:
    assert slug_of(varied, arm) == slug


def test_what_is_no_sweep_is_refused_with_those_that_may_have_been_meant() -> None:
    assert example_sweeps() == "sweeps/<name>"
    for age, name in enumerate(["sweeps/new", "sweeps/old", "elsewhere/other"]):
        Path(name).mkdir(parents=True)
        (Path(name) / SWEEP).write_text("{}")
        os.utime(Path(name) / SWEEP, (1000 - age, 1000 - age))
    for name, why, meant in (
        ("absent", "there is no such directory.", "sweeps/new, sweeps/old"),
        ("elsewhere", "it has no sweep.json.", "elsewhere/other"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_sweep(Path(name))
        (problem,) = caught.value.problems
        assert problem.what == f"{name} is no sweep: {why}"
        assert problem.fix == f"give the directory of a sweep, like {meant}"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{"])
def test_a_damaged_sweep_is_not_taken_for_an_empty_one(text: str, sweep: SweepDirectory) -> None:
    (sweep.path / SWEEP).write_text(text)
    with pytest.raises(ConfigError, match=r"sweep\.json cannot be read"):
        sweep.begin(["seed=1"])


@pytest.fixture
def point(tmp_path: Path) -> Point:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("seed: 1\n")
    return Point(number=0, hash="0", slug="x", path=path, overrides=())


def begun(point: Point) -> Point:
    (point.path / "attempts.jsonl").write_text('{"event": "start", "step": 0}\n')
    return point


def done(point: Point) -> Point:
    objective = {"value": 1.0}
    result = {"status": "finished", "reason": "end", "step": 3, "metrics": {}}
    content = {**result, "config": "config.yaml", "objective": objective}
    (point.path / "result.json").write_text(json.dumps(content))
    return begun(point)


def made(point: Point) -> Point:
    return point


@pytest.mark.parametrize(
    ("make", "event", "code", "state"),
    [
        (made, "", None, "waiting"),
        (made, "submitted", None, "waiting"),
        (made, "cancelled", None, "cancelled"),
        (made, "ended", 2, "failed"),
        (made, "ended", 143, "waiting"),
        (begun, "started", None, "partial"),
        (begun, "ended", 143, "partial"),
        (begun, "ended", 137, "failed"),
        (begun, "cancelled", 143, "cancelled"),
        (done, "", None, "done"),
        (done, "cancelled", None, "done"),
        (done, "ended", 1, "done"),
    ],
)
def test_the_state_of_a_point(make, event: str, code: int | None, state: str, point: Point) -> None:
    assert point_state(replace(make(point), event=event, code=code)) == state
    if make is begun and state == "partial":
        (point.path / "error.json").write_text("{}")
        assert point_state(point) == "failed"


def test_what_works_on_a_point(point: Point) -> None:
    """Who holds its directory, or a rank that was started for it and has yet to take it."""
    with Lock(done(point).path):
        assert point_state(point) == "running"
        assert process_of(point) == (os.getpid(), platform.node())
    assert point_state(point) == "done"
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


@pytest.mark.parametrize(
    ("make", "of_job", "state"),
    [
        (made, "PENDING", "queued"),
        (made, "CONFIGURING", "queued"),
        (made, "RUNNING", "running"),
        (made, None, "waiting"),
        (begun, "COMPLETING", "running"),
        (begun, None, "partial"),
        (begun, "NODE_FAIL", "failed"),
        (begun, "TIMEOUT", "partial"),
        (begun, "COMPLETED", "partial"),
        (begun, "CANCELLED", "cancelled"),
        (done, "CANCELLED", "done"),
    ],
)
def test_with_what_slurm_says(
    make, of_job: str | None, state: str, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def states(jobs) -> dict[str, str]:
        asked.extend(jobs)
        return dict.fromkeys(jobs, of_job) if of_job else {}

    monkeypatch.setattr(queue, "job_states", states)
    one = replace(make(point), event="submitted", job="7_0", cluster="slurm")
    assert survey([one]).states == {0: state}
    assert asked == ([] if make is done else ["7_0"])


def test_the_job_of_a_point_whose_submitter_was_killed(point: Point) -> None:
    assert last_job(point) is None
    (begun(point).path / "job.json").write_text('{"job": "9"}')
    assert last_job(point) == "9"
    assert last_job(replace(point, event="started")) is None, "since then it was started here"
    assert last_job(replace(point, cluster="local", job="3")) is None
