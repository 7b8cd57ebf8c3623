"""The run directory: what is in it, its provenance, and what is said where it cannot be made."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from helpers.going_on_helpers import read
from helpers.refusing import resolved

from forge.config.problems import ConfigError
from forge.resolve.resolve import Resolution
from forge.rundir import directory, files, outcome, provenance, saved_config

OVERRIDES = ["train.max_steps=7", "scheduler.warmup_steps=7"]


def resolution(*overrides: str) -> Resolution:
    return resolved([*OVERRIDES, *overrides])


@pytest.mark.usefixtures("no_git")
def test_what_is_in_it(tmp_path: Path) -> None:
    checked = resolution(f"run.root={tmp_path / 'runs'}", 'run.name="../a b: ü"')
    path, config = directory.create(checked, overrides=tuple(OVERRIDES))
    assert path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_..-a-b--ü_[0-9a-f]{8}", path.name)
    stored = saved_config.load_config(path / "config.yaml", trust=())
    assert saved_config.to_plain(stored) == saved_config.to_plain(config)
    assert (config.frozen, config.run.dir) == (True, str(path))
    assert read(path / "overrides.json") == OVERRIDES
    derived = {"key": "model.gated_mlp", "value": True, "why": "model.activation=silu"}
    assert derived in read(path / "derived.json")
    assert [w["rule"] for w in read(path / "warnings.json")] == ["scheduler.warmup"]
    assert checked.config.run.dir is None, "the resolution is not touched"


def test_names() -> None:
    assert len({directory.fresh_name("tiny") for _ in range(500)}) == 500, "within a second"
    assert len(directory.fresh_name("ü" * 300).encode()) < 255


def test_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["train.py", "--token", "abc123", "model=tiny", "+x.password=hunter2", "a 'b\nc"]
    monkeypatch.setattr(sys, "argv", typed)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    made = provenance.facts()
    kept = ["train.py", "--token", "<masked>", "model=tiny", "+x.password=<masked>", "a 'b\nc"]
    assert made["argv"] == kept
    assert "0123456789abcdef" not in json.dumps(made)
    assert (made["cwd"], made["host"]) == (os.getcwd(), platform.node())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", made["time"])
    assert made["versions"]["torch"] == metadata.version("torch")
    assert made["versions"].keys() >= {"forge-lm", "hydra-core", "omegaconf", "numpy"}


def test_the_revision_and_what_differs_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.setattr(provenance, "OURS", repository)
    file = repository / "file"

    def git(*arguments: str) -> str:
        who = ["-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
        words = ["git", *who, *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    def diff(*overrides: str) -> Path:
        return directory.create(resolution(*overrides), overrides=())[0] / "git.diff"

    assert provenance.facts()["git_revision"] is None
    git("init", "--quiet")
    file.write_text("before\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    assert provenance.facts()["git_revision"] == git("rev-parse", "HEAD")
    assert not diff().exists()
    file.write_text("after\npassword: hunter2\n")
    assert not diff("run.record_diff=false").exists()
    kept = diff()
    git("stash", "--quiet")
    git("apply", str(kept))
    assert file.read_text() == "after\npassword: <masked>\n"
    file.write_bytes(b"after \xe9\n")
    assert "-before\n+after \ufffd\n" in diff().read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("override", "said"), [("run.root=place", "Not a directory"), ("run.dir=place", "File exists")]
)
def test_a_place_that_is_taken_after_it_was_checked(
    override: str, said: str, tmp_path: Path
) -> None:
    checked = resolution(override)
    (tmp_path / "place").write_text("")
    with pytest.raises(ConfigError) as refused:
        directory.create(checked, overrides=())
    (problem,) = refused.value.problems
    assert problem.key.startswith(override)
    assert problem.what.endswith(f"cannot be written: {said}.")
    assert problem.fix == "choose another place with run.root or run.dir"
    assert [p.name for p in tmp_path.iterdir()] == ["place"]


def test_a_directory_that_cannot_be_filled_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same command fills it once there is room."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    checked = resolution("run.dir=a/b")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
            directory.create(checked, overrides=())
    assert not Path("a").exists()
    assert directory.create(checked, overrides=())[0].name == "b"


def test_a_place_whose_folders_cannot_be_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a mounted object store: refused before a step is made, and nothing is left."""
    checked, rename = resolution("run.dir=a/b"), os.rename

    def files_alone(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        if os.path.isdir(source):
            raise OSError(errno.ENOSYS, "Function not implemented")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", files_alone)
        with pytest.raises(ConfigError) as refused:
            directory.create(checked, overrides=())
    (problem,) = refused.value.problems
    assert "folders cannot be renamed there (Function not implemented), and a save" in problem.what
    assert problem.fix.startswith("run.dir on a disk, and checkpoint.remote=s3://")
    assert not Path("a").exists()
    made, _ = directory.create(checked, overrides=())
    assert not [path for path in made.iterdir() if "rename" in path.name]


def test_the_result_of_a_run(tmp_path: Path) -> None:
    assert outcome.read_result(tmp_path) is None
    kept = {"status": "finished", "reason": "end", "step": 7, "metrics": {"a": 1.0}}
    objective = {"objective": {"name": "a", "value": 1.0}}
    files.write_json(tmp_path / "result.json", {**kept, "tokens": 9, **objective})
    assert outcome.read_result(tmp_path) == outcome.Result(run_dir=tmp_path, objective=1.0, **kept)
    for damage in ("{", "[]", "{}"):
        (tmp_path / "result.json").write_text(damage)
        assert outcome.read_result(tmp_path) is None
