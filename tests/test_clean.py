"""`python -m forge.clean`: what it removes, what it never does, and how it asks."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from example_sweep import Example

from forge import clean
from forge.rundir.lock import Lock

Printed = pytest.CaptureFixture[str]
DAY = 86400


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Runs of a sweep: done, done and large, failed, stopped, made just now; all but the last two
    days old.
    """
    monkeypatch.chdir(tmp_path)
    example = Example(tmp_path / "sweeps" / "rates", steps=20)
    made = {
        "done": example.done([], seed=1).path,
        "large": example.done([], seed=2).path,
        "failed": example.failed([], seed=3, at=10, why="out of memory").path,
        "partial": example.partial([], seed=4, at=10).path,
        "waiting": example.prepared([], seed=5).path,
    }
    (made["large"] / "checkpoints").mkdir()
    (made["large"] / "checkpoints" / "weights").write_bytes(bytes(2_000_000))
    for name, path in made.items():
        for file in (path, *path.rglob("*")) if name != "waiting" else ():
            os.utime(file, (time.time() - 2 * DAY,) * 2)
    return made


def left(points: dict[str, Path]) -> str:
    return " ".join(name for name, path in points.items() if path.exists())


@pytest.mark.parametrize(
    ("words", "remain"),
    [
        ("--failed", "done large partial waiting"),
        ("--larger-than 1.5MB", "done failed partial waiting"),
        ("--larger-than 3MB", "done large failed partial waiting"),
        ("--older-than 1d", "waiting"),
        ("--older-than 3d", "done large failed partial waiting"),
        ("--older-than 47h --failed", "done large partial waiting"),
        ("--state done --state partial", "failed waiting"),
        ("--where seed=1 sweeps/rates", "large failed partial waiting"),
        ("--state waiting", "done large failed partial waiting"),
    ],
)
def test_what_is_removed(points: dict[str, Path], words: str, remain: str, capsys: Printed) -> None:
    assert clean.main([*words.split(), "--yes"]) == 0
    assert left(points) == remain
    folder = next(iter(points.values())).parent
    assert len(list(folder.iterdir())) == len(remain.split())  # nothing is left under another name
    n = 5 - len(remain.split())
    said = f"removed {n} run{'s' * (n > 1)}, " if n else "no run to remove\n"
    assert said in capsys.readouterr().out


def test_never_behind_a_link(points: dict[str, Path], capsys: Printed) -> None:
    """Found in a folder, or named: the run that the link leads to stays, and so does the link."""
    folder = Path("mine")
    folder.mkdir()
    link = folder / "run"
    link.symlink_to(points["done"])
    for named in (folder, link):
        assert clean.main([str(named), "--older-than", "0s", "--yes"]) == 0
        said = capsys.readouterr().out
        assert "left, for a link leads to it" in said
        assert said.count(points["done"].name) == 1  # its path, once
    assert link.is_symlink()
    assert left(points) == "done large failed partial waiting"
    Path("all").symlink_to(points["done"].parent)  # a folder of runs on another disk
    assert clean.main(["all", "--failed", "--yes"]) == 0
    assert left(points) == "done large partial waiting"


def test_never_one_at_work(points: dict[str, Path], capsys: Printed) -> None:
    """Nor any of a sweep on which a command is at work, nor one that was just made."""
    with Lock(points["partial"]):
        assert clean.main(["--older-than", "0s", "--failed", "--yes"]) == 0
        assert clean.main(["--state", "running", "--state", "waiting", "--yes"]) == 0
    assert left(points) == "done large partial waiting"
    said = capsys.readouterr().out
    assert f"left, for it is running: sweeps/rates/points/{points['partial'].name}" in said
    assert (
        f"left, for it has only just been made: sweeps/rates/points/{points['waiting'].name}"
        in said
    )
    with Lock(points["done"].parent.parent, "sweep.lock"):
        assert clean.main(["--older-than", "0s", "--yes"]) == 0
    assert left(points) == "done large partial waiting"
    assert "left, for a command is at work on its sweep: " in capsys.readouterr().out


def test_none_that_wrote_a_moment_ago_and_has_not_ended(
    points: dict[str, Path], capsys: Printed
) -> None:
    """It may be running on a file system without locks."""
    (points["partial"] / "metrics.jsonl").touch()
    assert clean.main(["--state", "partial", "--yes"]) == 0
    assert points["partial"].exists()
    assert "left, for it wrote a moment ago and has not ended: " in capsys.readouterr().out


def test_one_that_begins_while_it_asks(
    points: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    lock = Lock(points["partial"])

    def answer(_: str) -> str:
        lock.acquire()
        (points["done"] / "metrics.jsonl").write_text("{}\n")
        return "y"

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", answer)
    assert clean.main(["--older-than", "1d"]) == 1
    lock.release()
    out, err = capsys.readouterr()
    assert left(points) == "done partial waiting"
    assert "removed 2 runs, " in out
    assert f"{points['partial']} is in use by process {os.getpid()} on " in err
    assert f"{points['done']} has changed since it was listed. It is left" in err


@pytest.mark.parametrize(
    ("answer", "removes"), [("y", True), ("Yes ", True), ("", False), ("n", False), (None, False)]
)
def test_it_asks(
    points: dict[str, Path],
    answer: str | None,
    removes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Printed,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("" if answer is None else f"{answer}\n"))
    assert clean.main(["--failed"]) == 0
    assert points["failed"].exists() != removes
    out = capsys.readouterr().out
    assert "1 run: 1 failed; " in out
    assert "Remove this run for ever? [y/N] " in out
    assert out.endswith("MiB\n" if removes else "nothing was removed\n")


REFUSED = {
    "--failed": "--yes   [command line]\n     nothing was removed: there is no terminal to ask on",
    "": "which runs? Nothing says so.\n     -> for example --failed, or --older-than 7d;",
    "--older-than 7": "it takes a number and one of s, min, h, d, w.\n     -> --older-than 7d",
    "--larger-than 1XB": "it takes a number and one of kb, mb, gb, tb, kib, mib, gib.",
    "nope --failed": "there is no such directory.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused(
    points: dict[str, Path], words: str, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert clean.main(words.split()) == 2
    assert REFUSED[words] in capsys.readouterr().err
    assert left(points) == "done large failed partial waiting"


def test_links_are_not_followed(points: dict[str, Path], tmp_path: Path, capsys: Printed) -> None:
    """Inside a run they keep it from being removed, as they keep it from continuing."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (points["failed"] / "checkpoints").symlink_to(tmp_path / "precious")
    assert clean.main(["--failed", "--yes"]) == 1
    assert "this link leads out of it" in capsys.readouterr().err
    assert (tmp_path / "precious" / "file").exists()
    assert points["failed"].exists()


def test_nothing_while_slurm_is_silent(
    points: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    found = clean.filters.selected_runs
    monkeypatch.setattr(
        clean.filters, "selected_runs", lambda options: (found(options)[0], "no squeue.")
    )
    assert clean.main(["--failed", "--yes"]) == 2
    said = "no squeue. A run whose job waits could be among these runs."
    assert said in capsys.readouterr().err
    assert points["failed"].exists()
