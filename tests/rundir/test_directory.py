"""The run directory: what is in it, that it is new, and that a place where it cannot be is refused."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import forge
from forge.config.problems import ConfigError
from forge.resolve.resolve import Resolution
from forge.rundir import directory, files, outcome, provenance, saved_config

OVERRIDES = ["train.max_steps=7", "scheduler.warmup_steps=7"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def resolution(*overrides: str) -> Resolution:
    return forge.compose([*OVERRIDES, *overrides]).validate()


def read(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_what_is_in_it(tmp_path: Path):
    resolved = resolution(f"run.root={tmp_path / 'runs'}")
    path, config = directory.create(resolved, overrides=tuple(OVERRIDES))
    assert path.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_tiny_[0-9a-f]{8}", path.name)
    assert vars(saved_config.load(path / "config.yaml", trust=())) == vars(config)
    assert config.frozen
    assert config.run.dir == str(path)
    assert read(path / "overrides.json") == OVERRIDES
    assert {"key": "model.gated_mlp", "value": True, "why": "model.activation=silu"} in read(
        path / "derived.json"
    )
    assert [w["rule"] for w in read(path / "warnings.json")] == ["scheduler.warmup"]
    assert resolved.config.run.dir is None, "the resolution is not touched"


def test_provenance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        sys,
        "argv",
        ["train.py", "--token", "abc123", "model=tiny", "+trackers.x.password=hunter2", "a 'b\nc"],
    )
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    made = provenance.facts()
    assert made["argv"] == [
        "train.py",
        "--token",
        "<masked>",
        "model=tiny",
        "+trackers.x.password=<masked>",
        "a 'b\nc",
    ]
    assert "0123456789abcdef" not in json.dumps(made)
    assert made["cwd"] == os.getcwd()
    assert (made["host"], made["python"]) == (platform.node(), platform.python_version())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", made["time"])
    assert made["versions"]["torch"] == metadata.version("torch")
    assert made["versions"]["forge-lm"] == metadata.version("forge-lm")
    assert made["versions"].keys() >= {"hydra-core", "omegaconf", "numpy"}


def test_the_revision_and_what_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(provenance, "OURS", tmp_path / "repository")
    (tmp_path / "repository").mkdir()

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path / "repository"), *identity, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert provenance.facts()["git_revision"] is None
    git("init", "--quiet")
    (tmp_path / "repository" / "file").write_text("before\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    assert provenance.facts()["git_revision"] == git("rev-parse", "HEAD")
    path, _ = directory.create(resolution(), overrides=())
    assert not (path / "git.diff").exists()
    (tmp_path / "repository" / "file").write_text("after\npassword: hunter2\n")
    path, _ = directory.create(resolution("run.record_diff=false"), overrides=())
    assert not (path / "git.diff").exists()
    path, _ = directory.create(resolution(), overrides=())
    git("stash", "--quiet")
    git("apply", str(path / "git.diff"))
    assert (tmp_path / "repository" / "file").read_text() == "after\npassword: <masked>\n"
    (tmp_path / "repository" / "file").write_bytes(b"after \xe9\n")
    path, _ = directory.create(resolution(), overrides=())
    assert "-before\n+after \ufffd\n" in (path / "git.diff").read_text(encoding="utf-8")


def test_names_within_a_second_differ():
    assert len({directory.fresh_name("tiny") for _ in range(500)}) == 500


def test_a_name_is_one_path_element():
    assert re.fullmatch(r"[\w-]+_-etc-passwd--ü_\w{8}", directory.fresh_name("/etc/passwd: ü"))
    path, _ = directory.create(resolution('run.name="../a/b c"'), overrides=())
    assert path.parent == Path.cwd() / "runs"


def test_a_given_directory_is_taken(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert directory.create(resolution("run.dir=empty"), overrides=())[0] == tmp_path / "empty"
    assert (
        directory.create(resolution("run.dir=a/b/c"), overrides=())[0] == tmp_path / "a" / "b" / "c"
    )


@pytest.mark.parametrize(
    ("override", "said"), [("run.root=place", "Not a directory"), ("run.dir=place", "File exists")]
)
def test_a_place_that_is_taken_after_it_was_checked(override: str, said: str, tmp_path: Path):
    checked = resolution(override)
    (tmp_path / "place").write_text("")
    with pytest.raises(ConfigError) as refused:
        directory.create(checked, overrides=())
    (problem,) = refused.value.problems
    assert problem.what.endswith(f"cannot be written: {said}.")
    assert problem.key.startswith(override)
    assert problem.fix == "choose another place with run.root or run.dir"
    assert [p.name for p in tmp_path.iterdir()] == ["place"]


def test_what_could_not_be_made_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_config, "save", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        directory.create(resolution("run.dir=a/b"), overrides=())
    assert list(tmp_path.iterdir()) == []


def test_a_long_name_is_cut_to_what_a_file_system_takes():
    assert len(directory.fresh_name("ü" * 300).encode()) < 255
    directory.create(resolution(f"run.name={'x' * 300}"), overrides=())


def test_json_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files.write_json(tmp_path / "a.json", {"step": 1})
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write_json(tmp_path / "a.json", {"step": 2})
    assert read(tmp_path / "a.json") == {"step": 1}


def test_the_result_of_a_run(tmp_path: Path):
    assert outcome.read_result(tmp_path) is None
    content = {
        "status": "finished",
        "reason": "end",
        "step": 7,
        "tokens": 9,
        "config": "config.yaml",
        "metrics": {"a": 1.0},
    }
    files.write_json(
        tmp_path / "result.json", {**content, "objective": {"name": "a", "value": 1.0}}
    )
    assert outcome.read_result(tmp_path) == outcome.Result(
        run_dir=tmp_path, status="finished", reason="end", step=7, metrics={"a": 1.0}, objective=1.0
    )
