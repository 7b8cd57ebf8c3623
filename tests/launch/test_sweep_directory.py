"""The directory of a sweep and its ledger: points by number, what happened to each, and that a
crash loses nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge.config.problems import ConfigError
from forge.launch.sweep.directory import (
    LEDGER,
    SWEEP,
    Point,
    SweepDirectory,
    examples,
    find_sweep,
    slug_of,
)
from forge.rundir import files


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDirectory:
    made = SweepDirectory(tmp_path / "mine")
    made.begin(["seed=1,2"], ["forge.train", "-m", "seed=1,2"])
    return made


def add(sweep: SweepDirectory, seed: int, **more: object) -> Point:
    return sweep.add(
        hash=f"{seed:032d}", overrides=[f"seed={seed}"], varied={"seed": str(seed)}, **more
    )  # type: ignore[arg-type]


def test_points_are_numbered_in_their_order(sweep: SweepDirectory) -> None:
    first, second = add(sweep, 1), add(sweep, 2, arm="wide")
    assert [point.number for point in sweep.points()] == [0, 1]
    assert sweep.points() == [first, second]
    assert second.path == sweep.path / "points" / "001_wide_seed-2_00000000"
    assert (second.arm, second.slug, second.overrides, second.varied) == (
        "wide",
        "wide_seed-2",
        ("seed=2",),
        {"seed": "2"},
    )
    assert sweep.next_number() == 2


def test_a_point_has_the_last_that_happened_to_it(sweep: SweepDirectory) -> None:
    add(sweep, 1)
    sweep.note("submitted", 0, job="12_0", cluster="slurm")
    sweep.note("started", 0, pid=5, host="here")
    (point,) = sweep.points()
    assert (point.event, point.job, point.cluster, point.pid, point.host, point.code) == (
        "started",
        "12_0",
        "slurm",
        5,
        "here",
        None,
    )
    sweep.note("ended", 0, code=3)
    (point,) = sweep.points()
    assert (point.event, point.code, point.pid) == ("ended", 3, 5)


def test_what_was_cancelled_stays_so_until_it_is_started_again(sweep: SweepDirectory) -> None:
    add(sweep, 1)
    for event, seen in (
        ("started", "started"),
        ("cancelled", "cancelled"),
        ("ended", "cancelled"),
        ("started", "started"),
    ):
        sweep.note(event, 0)
        assert sweep.points()[0].event == seen


def test_a_line_that_a_kill_left_unfinished(sweep: SweepDirectory) -> None:
    add(sweep, 1)
    with (sweep.path / LEDGER).open("a") as file:
        file.write('{"event": "point", "num')
    assert len(sweep.points()) == 1
    add(sweep, 2)
    assert [point.number for point in sweep.points()] == [0, 1]


def test_of_points_with_one_number_the_first_counts(sweep: SweepDirectory) -> None:
    first = add(sweep, 1, number=0)
    add(sweep, 2, number=0)
    sweep.note("ended", 7, code=0)
    assert sweep.points() == [first]


def test_every_command_is_kept(sweep: SweepDirectory) -> None:
    sweep.begin(["seed=3"], ["forge.train", "-m", "seed=3"])
    assert [command["overrides"] for command in sweep.commands()] == [["seed=1,2"], ["seed=3"]]
    assert sweep.commands()[0]["argv"] == ["forge.train", "-m", "seed=1,2"]
    assert sweep.name == "mine"


def test_a_directory_that_is_moved_is_the_same_sweep(sweep: SweepDirectory, tmp_path: Path) -> None:
    add(sweep, 1)
    sweep.path.rename(tmp_path / "moved")
    moved = find_sweep(tmp_path / "moved")
    assert moved.name == "mine"
    assert moved.points()[0].path.parent == tmp_path / "moved" / "points"


@pytest.mark.parametrize(
    ("varied", "arm", "slug"),
    [
        ({"optimizer.lr": "0.001", "seed": "1"}, None, "lr-0.001_seed-1"),
        ({"a.lr": "1", "b.lr": "2"}, None, "a.lr-1_b.lr-2"),
        ({"optimizer.betas": "[0.9,0.95]"}, None, "betas--0.9-0.95"),
        ({"data.path": "/a/b c/é.txt"}, "wide", "wide_path--a-b-c-.txt"),
        ({}, None, "point"),
        ({"run.name": "x" * 200}, None, "name-" + "x" * 75),
        ({"run.name": "../../.."}, None, "name"),
    ],
)
def test_a_readable_name(varied: dict[str, str], arm: str | None, slug: str) -> None:
    assert slug_of(varied, arm) == slug


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: None, "is no sweep: there is no such directory."),
        (lambda path: path.mkdir(), "is no sweep: it has no sweep.json."),
    ],
)
def test_what_is_no_sweep(make, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x")
    with pytest.raises(ConfigError) as caught:
        find_sweep(tmp_path / "x")
    (problem,) = caught.value.problems
    assert (problem.what, problem.fix) == (
        f"{tmp_path / 'x'} {what}",
        "give the directory of a sweep, like sweeps/<name>",
    )


def test_sweeps_that_may_have_been_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(["sweeps/new", "sweeps/old", "elsewhere/other"]):
        Path(name).mkdir(parents=True)
        (Path(name) / SWEEP).write_text("{}")
        os.utime(Path(name) / SWEEP, (1000 - age, 1000 - age))
    assert examples() == examples(Path("absent")) == "sweeps/new, sweeps/old"
    assert examples(most=1) == "sweeps/new"
    assert examples(Path("elsewhere")) == "elsewhere/other"


@pytest.mark.parametrize("text", ["", "{}", "[1]", "{"])
def test_a_damaged_sweep_is_not_taken_for_an_empty_one(text: str, sweep: SweepDirectory) -> None:
    (sweep.path / SWEEP).write_text(text)
    with pytest.raises(ConfigError) as caught:
        sweep.begin(["seed=1"])
    assert caught.value.problems[0].what == f"{sweep.path / SWEEP} cannot be read."


def test_lines_are_whole_whoever_writes(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    files.append_row(file, {"a": 1})
    file.write_text(file.read_text() + '{"torn')
    files.append_row(file, {"b": 2})
    assert files.read_rows(file) == [{"a": 1}, {"b": 2}]
    assert files.read_rows(tmp_path / "none") == []
