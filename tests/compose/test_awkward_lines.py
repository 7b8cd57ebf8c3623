"""Command lines that once ended in a traceback, wrote where they were refused, or were taken though
they were wrong.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from refusing import only, problems, resolved

import forge.train
from forge import check, checkpoints, explain, resume
from forge.compose import composition
from forge.compose.grammar import read
from forge.rundir import directory

BYTES = "\udcff"  # what Python makes of the byte 0xff in an argument


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "typed", [f'run.name="{BYTES}"', f"run.root={BYTES}", f"model={BYTES}", f"{BYTES}=1", BYTES]
)
def test_bytes_that_are_no_text(typed: str):
    found = only([typed])
    assert (found.key, found.what, found.fix) == (
        typed,
        "it has bytes that are no UTF-8 text.",
        "write it in UTF-8",
    )


def test_text_that_the_terminal_cannot_show(monkeypatch: pytest.MonkeyPatch):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", shown)
    assert check.main(['run.root="ü"']) == 0
    shown.flush()
    assert rb"\xfc/<date>_" in shown.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["seed", "optimizer.lr", "run.name"])
def test_a_number_that_python_does_not_read(key: str):
    found = only([f"{key}={'9' * 5000}"])
    assert (found.what, found.fix) == ("it has a number of too many digits.", "a smaller one")


def test_an_integer_that_no_float_holds():
    assert (
        only([f"optimizer.lr={'9' * 400}"]).what
        == f"optimizer.lr is a number; '{'9' * 400}' is not."
    )


@pytest.mark.parametrize(
    "typed",
    [
        "run.dir",
        "run.root",
        "data.cache_dir",
        "checkpoint.init_from",
        "checkpoint.resume_from",
        "data.path",
    ],
)
def test_paths_longer_than_the_system_takes(typed: str):
    found = problems([*(["data=text"] if typed == "data.path" else []), f"{typed}={'x' * 5000}"])
    assert all(p.key.startswith(f"{typed}=") for p in found)
    assert found or typed == "data.cache_dir", (
        "the cache is made, or refused, when the data is prepared"
    )


def test_a_target_longer_than_the_system_takes():
    assert (
        only([f"optimizer._target_=forge.{'x' * 5000}.y"]).what
        == f"forge.{'x' * 5000}.y may not be built for optimizer."
    )


@pytest.mark.parametrize(
    "words", [["-cd", "~nobody_here"], ['hydra.searchpath=["~nobody_here/conf"]']]
)
def test_the_home_of_nobody(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert check.main(words) == 2
    assert "there is no directory or package " in capsys.readouterr().err


@pytest.mark.parametrize("section", ["..", ".", "model.", "model[0", "a b[", "model..dim", "seed"])
def test_a_section_that_is_none(section: str, capsys: pytest.CaptureFixture[str]):
    assert forge.train.main(["--cfg", "job", "-p", section]) == 2
    assert f"--package {section}\n     there is no such section." in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed", ["model=tiny/../small", "model=../model/tiny", "experiment=../data/text"]
)
def test_a_choice_outside_its_group(typed: str):
    group, _, name = typed.partition("=")
    assert only([typed]).what == f"there is no {group} named '{name}'."


@pytest.mark.parametrize(
    "typed", ["run.root=file", "run.dir=file/x", "run.dir=''", f"run.dir=new/{'x' * 300}"]
)
@pytest.mark.parametrize("verb", [forge.train, check])
def test_a_place_where_no_run_can_be(typed: str, verb, capsys: pytest.CaptureFixture[str]):
    Path("file").touch()
    assert verb.main([typed]) == 2
    assert "cannot be made or written" in capsys.readouterr().err
    assert os.listdir() == ["file"]


def test_a_directory_that_fails_halfway_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full(*_):
        raise OSError(28, "No space left on device")

    Path("there").mkdir()
    monkeypatch.setattr(directory.serialize, "save", full)
    for typed in ("run.root=there/new/er", "run.dir=there/new/er", "run.dir=a/b"):
        assert forge.train.main([typed]) == 2
        assert "cannot be written: No space left on device." in capsys.readouterr().err
        assert [str(p) for p in Path().rglob("*")] == ["there"]


def test_a_long_name_is_cut_in_the_name_of_the_directory():
    for name in ("x" * 1000, "é" * 1000, "字" * 1000):
        cut = directory.fresh_name(name).encode()
        assert len(cut) < 150
        assert name[:30].encode() in cut


def test_home_in_the_place_of_the_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/somewhere")
    config = resolved(['run.root="~/runs"', 'run.dir="~/x"']).config
    assert (config.run.root, config.run.dir) == ("/somewhere/runs", "/somewhere/x")
    assert resolved(['run.root="a~b"']).config.run.root == "a~b"


@pytest.mark.parametrize(
    "text", ["", "a: [", "- 1\n", "\x00", "run: 3\n", "a: !!python/object:os.x {}\n"]
)
def test_a_run_whose_config_is_damaged(text: str):
    Path("run").mkdir()
    Path("run", "config.yaml").write_text(text)
    found = problems(["run.dir=run"])
    assert [p.key for p in found] == ["run.dir=run"]
    assert found[0].what.startswith("run/config.yaml cannot be read: ")


@pytest.mark.parametrize("value", ["2", "-1", "10"])
def test_a_number_that_is_no_truth(value: str):
    assert only([f"run.inline={value}"]).what == f"run.inline is true or false; '{value}' is not."


def test_numbers_that_are():
    assert (
        resolved(["run.inline=1"]).config.run.inline,
        resolved(["run.inline=0"]).config.run.inline,
    ) == (True, False)


@pytest.mark.parametrize("verb", [forge.train, check, explain])
def test_a_working_directory_that_is_gone(
    verb, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert verb.main(["seed"] if verb is explain else ["seed=1"]) == 2
    assert "the directory that this was typed in has been removed." in capsys.readouterr().err


@pytest.mark.parametrize("verb", [resume, checkpoints])
@pytest.mark.parametrize("name", ["", "nothing", "x" * 5000, "damaged", "a file.txt", "\x1b"])
def test_a_run_that_is_none(verb, name: str, capsys: pytest.CaptureFixture[str]):
    Path("damaged").mkdir()
    Path("damaged", "config.yaml").write_text("a: [")
    Path("a file.txt").touch()
    assert verb.main([name]) == 2
    error = capsys.readouterr().err
    assert "is no run directory" in error or "damaged/" in error
    assert verb is checkpoints or "nothing was started or written." in error


def test_a_removal_is_no_key_to_explain(capsys: pytest.CaptureFixture[str]):
    assert explain.main(["seed", "~optimizer.lr"]) == 2
    assert (
        "~optimizer.lr   [command line]\n     an option cannot be removed."
        in capsys.readouterr().err
    )


def test_wrong_keys_and_wrong_overrides_are_told_together(capsys: pytest.CaptureFixture[str]):
    assert explain.main(["modl", "optimizer.lrr=1", "seed", "train.max_steps=0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("3 problems; nothing was started or written.\n  1. modl\n")
    assert "optimizer.lrr=1" in error
    assert "train.max_steps=0" in error


def test_explain_of_no_key(capsys: pytest.CaptureFixture[str]):
    assert explain.main([""]) == 2
    assert "there is no group or option ''." in capsys.readouterr().err


def test_what_is_refused_as_text_is_refused_from_python_too():
    assert read(f"run.name={BYTES}") is not None
    with pytest.raises(ValueError, match="UTF-8"):
        composition.config([f"run.name={BYTES}"])
