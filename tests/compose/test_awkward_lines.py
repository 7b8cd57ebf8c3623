"""Places, names and numbers that once ended in a traceback, or wrote where they were refused."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from helpers.refusing import only, problems, resolved

import forge.train
from forge import check, checkpoints, explain, resume
from forge.rundir import directory

NO_KEYS = ["", " ", ".", "a.", "a..b", "a@b@c", "a/b", "a[0]", "-a", "~+", "ü", "${seed}", "'a'"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_every_awkward_key(sign: str) -> None:
    typed = [text for key in NO_KEYS for text in (f"{sign}{key}=1", f"{sign}{key}")]
    assert len(problems(typed)) == len(typed)


def test_text_that_the_terminal_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert check.main(['run.root="ü"']) == 0
    shown.flush()
    assert rb"\xfc/<date>_" in shown.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("section", ["..", "model.", "model[0", "a b[", "seed"])
def test_a_section_that_is_none(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert forge.train.main(["--cfg", "job", "-p", section]) == 2
    assert f"--package {section}\n     there is no such section." in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["run.root=file", "run.dir=file/x", "run.dir=''"])
@pytest.mark.parametrize("verb", [forge.train, check])
def test_a_place_where_no_run_can_be(typed: str, verb, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").touch()
    assert verb.main([typed]) == 2
    assert "cannot be made or written" in capsys.readouterr().err
    assert os.listdir() == ["file"]


def test_a_directory_that_fails_halfway_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    Path("there").mkdir()
    monkeypatch.setattr(directory.saved_config, "save_config", full)
    for typed in ("run.root=there/new/er", "run.dir=there/new/er", "run.dir=a/b"):
        assert forge.train.main([typed]) == 2
        assert "cannot be written: No space left on device." in capsys.readouterr().err
        assert [str(p) for p in Path().rglob("*")] == ["there"]


def test_a_long_name_is_cut_in_the_name_of_the_directory() -> None:
    for name in ("x" * 1000, "é" * 1000, "字" * 1000):
        cut = directory.fresh_name(name).encode()
        assert len(cut) < 150
        assert name[:30].encode() in cut


def test_home_in_the_place_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    config = resolved(['run.root="~/runs"', 'run.dir="~/x"']).config
    assert (config.run.root, config.run.dir) == ("/somewhere/runs", "/somewhere/x")
    assert resolved(['run.root="a~b"']).config.run.root == "a~b"


@pytest.mark.parametrize("text", ["", "a: [", "- 1\n", "run: 3\n", "a: !!python/object:os.x {}\n"])
def test_a_run_whose_config_is_damaged(text: str) -> None:
    Path("run").mkdir()
    Path("run", "config.yaml").write_text(text)
    found = only(["run.dir=run"])
    assert found.key == "run.dir=run"
    assert found.what.startswith("run/config.yaml cannot be read: ")


@pytest.mark.parametrize("verb", [forge.train, check, explain])
def test_a_working_directory_that_is_gone(
    verb, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert verb.main(["seed"] if verb is explain else ["seed=1"]) == 2
    assert "the directory that this was typed in has been removed." in capsys.readouterr().err


@pytest.mark.parametrize("verb", [resume, checkpoints])
@pytest.mark.parametrize("name", ["", "nothing", "x" * 5000, "damaged", "a file.txt", "\x1b"])
def test_a_run_that_is_none(verb, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("damaged").mkdir()
    Path("damaged", "config.yaml").write_text("a: [")
    Path("a file.txt").touch()
    assert verb.main([name]) == 2
    error = capsys.readouterr().err
    assert "is no run directory" in error or "damaged/" in error
    assert verb is checkpoints or "nothing was started or written." in error
