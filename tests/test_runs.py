"""`python -m forge.runs`: what is listed, filtered, sorted and refused; tags and notes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_sweep import Example

from forge import cli, runs
from forge.rundir.annotations import Annotations, read_annotations
from forge.rundir.lock import Lock
from forge.rundir.saved_config import read_plain

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep, and a run of its own: a directory that was taken out of another sweep."""
    desk = tmp_path_factory.mktemp("desk")
    example = Example(desk / "sweeps" / "rates", steps=200)
    for seed in (1, 2):
        example.done(["optimizer.lr=0.001"], seed=seed)
        example.done(["optimizer.lr=0.002"], seed=seed, gain=0.5)
    example.failed(["optimizer.lr=0.03"], seed=1, at=50, why="out of memory")
    example.partial(["optimizer.lr=0.03"], seed=2, at=100)
    example.waiting(["optimizer.lr=0.03"], seed=3)
    alone = Example(desk / "other", steps=200).partial([], seed=1, at=100)
    (desk / "runs").mkdir()
    alone.path.rename(desk / "runs" / "mine")
    return desk


@pytest.fixture
def desk(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def listed(capsys: Printed, *words: str) -> list[dict]:
    assert runs.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(rows: list[dict]) -> list[str]:
    return [Path(row["path"]).name[:3] for row in rows]


def test_all_runs_are_listed_with_what_their_files_say(desk: Path, capsys: Printed) -> None:
    rows = listed(capsys, "--sort", "name")
    assert names(rows) == ["min", "000", "001", "002", "003", "004", "005"]
    for row in rows:
        path = Path(row["path"])
        assert row["size"] == sum(file.stat().st_size for file in path.rglob("*"))
        lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
        losses = [(line["eval/loss"], line["step"]) for line in lines if "eval/loss" in line]
        assert (row["best"], row["best_step"]) == min(losses, default=(None, None))
    _, first, *_, failed, partial = rows
    assert [row["state"] for row in rows] == ["partial", *["done"] * 4, "failed", "partial"]
    assert (partial["step"], partial["of"], failed["why"]) == (100, 200, "out of memory")
    assert first["differs"] == {"optimizer.lr": "0.001"}  # four of seven have seed 1
    with Lock(Path(failed["path"])):
        assert names(listed(capsys, "--state", "running")) == ["004"]


def test_the_table(desk: Path, capsys: Printed) -> None:
    assert runs.main(["sweeps", "--sort", "best"]) == 0
    head, *lines, _, last = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "run"
    assert "best eval/loss" in head
    assert [line.partition("points/")[2][:3] for line in lines] == [
        *sorted(["000", "001", "002", "003"], key=lambda n: best_of(desk, n)),
        "005",
        "004",
    ]
    assert "lr=0.03" in lines[-1]
    assert last.startswith("6 runs: 4 done, 1 partial, 1 failed; ")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_the_table_is_as_wide_as_the_terminal(
    desk: Path, width: int, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole columns: names, states and best values are left, and what is not there is said."""
    assert runs.main(["note", "sweeps/rates/points/" + point_of(desk, "000"), "word " * 40]) == 0
    capsys.readouterr()
    monkeypatch.setattr(cli, "terminal_width", lambda: width)
    assert runs.main(["sweeps", "--sort", "best"]) == 0
    head, *lines, _, total, last = [*capsys.readouterr().out.splitlines(), ""][:10]
    assert runs.main(["note", "sweeps/rates/points/" + point_of(desk, "000"), ""]) == 0
    assert total.startswith("6 runs: ")
    assert all(len(line) <= width for line in (head, *lines))
    columns = head.split()
    assert columns[:2] == ["run", "state"]
    order = [*sorted(["000", "001", "002", "003"], key=lambda n: best_of(desk, n)), "005", "004"]
    ends = [point_of(desk, number)[-6:] for number in order]  # which tell points apart
    assert [line.split()[0][-6:] for line in lines] == ends
    shown = {200: "size", 60: "best", 40: "best"}[width]
    assert shown in columns
    if width == 200:
        assert last == ""
        assert any(line.endswith("…") for line in lines)  # the note alone is cut
    else:
        assert last.startswith("not shown here: size, note, ")
        assert not any(line.endswith("…") for line in lines)


def point_of(desk: Path, number: str) -> str:
    (path,) = desk.glob(f"sweeps/rates/points/{number}_*")
    return path.name


def best_of(desk: Path, number: str) -> float:
    (file,) = desk.glob(f"sweeps/rates/points/{number}_*/metrics.jsonl")
    return min(json.loads(line).get("eval/loss", 99) for line in file.read_text().splitlines())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--where optimizer.lr=1e-3", "000 002"),
        ("--where optimizer.lr!=0.001 --state done", "001 003"),
        ("--where model=decoder --state failed --state partial", "004 005 min"),
        ("--where optimizer.lr=0.001 --where seed=2", "002"),
        ("sweeps/rates/points --where seed=1", "000 001 004"),
        ("--where model.dim=1", ""),
    ],
)
def test_filters(desk: Path, words: str, found: str, capsys: Printed) -> None:
    assert sorted(names(listed(capsys, *words.split()))) == found.split()


def test_sorted_by_age_and_size(desk: Path, capsys: Printed) -> None:
    """Age counts from what the run wrote last, not from a tag or a lock."""
    (old,) = desk.glob("sweeps/rates/points/003_*")
    for file in old.iterdir():
        os.utime(file, (0, time.time() - 3 * 86400))
    (old / "trace").write_bytes(bytes(10**6))
    os.utime(old / "trace", (0, 0))
    (old / "run.lock").touch()
    assert runs.main(["tag", str(old), "kept"]) == 0
    capsys.readouterr()
    row = listed(capsys)[-1]
    assert (names([row]), row["tags"]) == (["003"], ["kept"])
    assert row["age"] == pytest.approx(3 * 86400, abs=60)
    assert names(listed(capsys, "--sort", "size", "--reverse"))[0] == "003"


def test_tags_and_notes(desk: Path, capsys: Printed) -> None:
    before = {path.name for path in Path("runs/mine").iterdir()}
    assert runs.main(["tag", "runs/mine", "paper", "a", "paper"]) == 0
    assert runs.main(["note", "runs/mine", " as in\nthe paper "]) == 0
    assert read_annotations(Path("runs/mine")) == Annotations(
        tags=("paper", "a"), note="as in\nthe paper"
    )
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["runs/mine: tags paper a", "runs/mine: tags paper a; note: as in"]
    assert runs.main(["--tag", "paper", "--tag", "a"]) == 0
    assert "as in the paper" in capsys.readouterr().out
    assert runs.main(["tag", "runs/mine", "a", "--remove"]) == 0
    capsys.readouterr()
    assert names(listed(capsys, "--tag", "a")) == []
    assert runs.main(["tag", "runs/mine", "paper", "--remove"]) == 0
    assert runs.main(["note", "runs/mine", ""]) == 0
    assert capsys.readouterr().out.endswith("runs/mine: no tags and no note\n")
    assert {path.name for path in Path("runs/mine").iterdir()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["nope"],
            "nope   [command line]\n     there is no such directory.\n     -> give a folder",
        ),
        (
            ["--where", "optimizer.lrr=1"],
            "--where optimizer.lrr=1   [command line]\n"
            "     no run here has an option optimizer.lrr.\n"
            "     -> did you mean optimizer.lr, ",
        ),
        (["--where", "seed"], "it is no KEY=VALUE.\n     -> did you mean seed?"),
        (
            ["tag", "sweeps", "a"],
            "sweeps is no run: it has no config.yaml.\n     -> python -m forge",
        ),
        (
            ["tag", "runs/mine", "two words"],
            "a tag is one word of letters, digits and . : + / - _.",
        ),
        (["note", "nope", "a"], "nope is no run: there is no such directory."),
    ],
)
def test_what_is_refused(desk: Path, words: list[str], said: str, capsys: Printed) -> None:
    assert runs.main(words) == 2
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True), err


def test_a_note_that_cannot_be_written(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs, "annotate", full)
    assert runs.main(["note", "runs/mine", "a"]) == 2
    said = "runs/mine\n     its tags and note cannot be written: No space left on device."
    assert said in capsys.readouterr().err


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    assert runs.main([]) == 0
    assert capsys.readouterr().out == "no runs\n"


def test_a_damaged_config_is_a_failed_run(desk: Path, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "config.yaml").write_text("train: [\n")
    (row,) = listed(capsys, str(tmp_path))
    assert (row["state"], "cannot be read" in row["why"]) == ("failed", True)


def test_a_config_read_by_sections_is_the_config(desk: Path) -> None:
    known: dict = {}
    configs = [path.parent for path in sorted(desk.rglob("config.yaml"))]
    assert len(configs) == 7
    for path in configs:
        assert read_plain(path, known) == read_plain(path)


@pytest.mark.nightly
def test_two_hundred_runs_take_less_than_a_second(tmp_path: Path) -> None:
    """Of the CPU, in a process of its own."""
    example = Example(tmp_path / "sweep", steps=200)
    for number in range(200):
        example.done([f"optimizer.lr={1e-5 * (1 + number % 10):g}"], seed=number)
    code = "import time; from forge import runs; assert runs.main(['sweep']) == 0\n"
    code += "import sys; print(time.process_time(), 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, text=True
    )
    assert done.returncode == 0, done.stderr
    *_, count, last = done.stdout.splitlines()
    assert count.startswith("200 runs: 200 done; ")
    seconds, has_numpy = last.split()
    assert (float(seconds) < 1.5, has_numpy) == (True, "False")
