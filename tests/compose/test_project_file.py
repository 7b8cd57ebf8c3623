"""A project file is found upwards, read, checked and trusted once; what it says stands before what
is typed, and gives way to experiments.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import forge
from forge import check, cli, explain
from forge.compose import project, trust
from forge.compose.trust import in_project
from forge.config.problems import ConfigError, Problem

FILE = """\
searchpath: [conf]
trust: [mine.]
defaults:
  - model=wide
  - train.max_steps=20
  - optimizer.lr=0.5
  - data.cache_dir=cached
"""
WIDE = """\
# @package model
defaults:
  - /schema/model@_here_: decoder
  - _self_
dim: 256
"""
LONG = """\
# @package _global_
defaults:
  - override /optimizer: sgd
train:
  max_steps: 7
sweeper:
  params:
    seed: 1,2
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, which is not trusted yet, and the working directory in it."""
    folder = tmp_path / "mine"
    for name, text in {
        "forge.yaml": FILE,
        "conf/model/wide.yaml": WIDE,
        "conf/experiment/long.yaml": LONG,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "below").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    trust._say.cache_clear()
    return folder


@pytest.fixture
def trusted(root: Path) -> Path:
    found = project.find_project()
    assert found
    trust.remember(found)
    return root


def refused(file: Path, text: str) -> list[Problem]:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        project.find_project()
    return list(error.value.problems)


WRONG = [
    ("serchpath: [conf]", 1, "a project file has no key 'serchpath'.", "did you mean searchpath?"),
    ("name: 3", 1, "name is a text.", "name: mine"),
    ("\ntrust: mine.", 2, "trust is a list of texts.", "trust: [mine.]"),
    ("trust:\n- a b", 2, "'a b' is no prefix of modules.", "such as mine. or mine.models."),
    ("defaults: [model]", 1, "this is not key=value.", "write model=..."),
    ("defaults: ['run.trust=[os.]']", 1, "it has a key of its own here, trust.", "leave it out"),
    (
        "defaults: ['hydra.searchpath=[x]']",
        1,
        "it has a key of its own here, searchpath.",
        "leave it out",
    ),
    ("defaults: [run.dir=x]", 1, "all runs would be in one directory.", "leave it out"),
    ("a: [", 1, "the file is not YAML: ", "correct the file"),
    ("[a]", 1, "it has keys: name, searchpath, trust, defaults.", "correct the file"),
]


@pytest.mark.parametrize(("text", "line", "what", "fix"), WRONG)
def test_what_is_wrong_with_it_is_said(
    root: Path, text: str, line: int, what: str, fix: str
) -> None:
    (found,) = refused(root / "forge.yaml", text)
    assert found.what.startswith(what)
    assert (found.fix, found.where) == (fix, f"mine: forge.yaml:{line}")


def test_all_that_is_wrong_is_said_at_once(root: Path) -> None:
    found = refused(root / "forge.yaml", "searchpath:\n- conf\n- cnf\nmodel: x\n")
    assert [one.where for one in found] == ["mine: forge.yaml:3", "mine: forge.yaml:4"]
    assert found[0].what == f"there is no directory {root / 'cnf'}."
    assert found[1].fix == "its keys: name, searchpath, trust, defaults"


def test_it_is_found_from_below_and_before_a_pyproject(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "pyproject.toml").write_text('[tool.forge]\nname = "other"\n')
    found = project.find_project(root / "below")
    assert found is not None
    assert (found.name, found.root, found.searchpath) == ("mine", root, (str(root / "conf"),))
    (root / "forge.yaml").unlink()
    found = project.find_project(root / "below")
    assert found is not None
    assert found.name == "other"
    (found,) = refused(root / "pyproject.toml", "[tool.black]\n[tool.forge]\n\nnames = 1\n")
    assert (found.where, found.fix) == ("mine: pyproject.toml:4", "did you mean name?")
    (found,) = refused(root / "pyproject.toml", "[tool]\nforge = 3\n")
    assert found.what.startswith("tool.forge is a table with keys")
    (root / "pyproject.toml").write_text("[tool.black]\n")
    assert project.find_project() is None
    (root / "forge.yaml").write_text("")
    monkeypatch.setenv("HOME", str(root))
    assert project.find_project(root / "below") is None
    monkeypatch.undo()
    root.chmod(0o777)
    assert project.find_project(root / "below") is None


def test_what_is_typed_and_an_experiment_are_over_its_defaults(trusted: Path) -> None:
    config = forge.compose([])
    values = (config.model.dim, config.train.max_steps, config.optimizer.lr)
    assert values == (256, 20, 0.5)
    assert config.data.cache_dir == str(trusted / "cached")
    assert forge.compose(["train.max_steps=3"]).train.max_steps == 3
    assert forge.compose(["model=tiny"]).model.dim == 128
    config = forge.compose(["experiment=long"])
    assert (config.train.max_steps, config.model.dim) == (7, 256)
    assert config.optimizer.lr != 0.5
    assert "train.max_steps=20" not in config.overrides
    assert config.run.trust == ["mine."]
    assert forge.compose(["run.trust=[yours.]"]).run.trust == ["mine.", "yours."]
    assert "seed=5" not in in_project(["experiment=long"])
    (trusted / "forge.yaml").write_text(FILE + "  - seed=5\n")
    assert "seed=5" in in_project([])
    assert "seed=5" not in in_project(["experiment=long"])


def test_it_says_where_a_value_and_a_mistake_are(
    trusted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trusted / "below")
    assert explain.main(["model.dim", "train.max_steps"]) == 0
    printed = capsys.readouterr()
    assert "from          mine: conf/model/wide.yaml:5" in printed.out
    assert "from          mine: forge.yaml:5: train.max_steps=20" in printed.out
    assert printed.err == f"project: mine ({trusted / 'forge.yaml'})\n"
    text = FILE.replace("model=wide", "model=wid").replace("lr=0.5", "lr=-1")
    (trusted / "forge.yaml").write_text(text)
    assert check.main([]) == cli.REFUSED
    said = capsys.readouterr().err
    assert "model=wid   [mine: forge.yaml:4]\n" in said
    assert "did you mean model=wide" in said
    assert "optimizer.lr=-1.0   [mine: forge.yaml:6]\n" in said


def test_without_a_terminal_it_is_refused_and_says_how(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main([]) == cli.REFUSED
    said = capsys.readouterr().err
    assert f"the project in {root} is not yet trusted on this machine." in said
    assert "It lets mine. be imported and run; it adds the groups in" in said
    assert f"-> if you trust it: python -m forge.new --trust {root}\n" in said
    assert str(root) not in sys.path
    from forge.new.__main__ import main

    assert main(["--trust", str(root)]) == 0
    assert check.main([]) == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_is_asked_once_and_again_where_more_is_let(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(*answers: str) -> str:
        """What is said while these are answered, all of them."""
        stdin, stderr = Terminal("".join(f"{one}\n" for one in answers)), Terminal()
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stderr", stderr)
        with suppress(ConfigError):
            in_project([])
            stderr.write("used")
        assert stdin.read() == ""
        return stderr.getvalue()

    root.chmod(0o775)
    said = answered("n")
    assert "begins each command with model=wide" in said
    assert f"may be written by others: {root}\n" in said
    assert said.endswith("[y/N] ")
    assert answered("y").endswith("used")
    assert "[y/N]" not in answered()
    (root / "forge.yaml").write_text(FILE.replace("[mine.]", "[]"))
    assert "[y/N]" not in answered()  # less is let
    (root / "forge.yaml").write_text(FILE.replace("[mine.]", "[mine., os.]"))
    assert "lets mine., os. be imported" in answered("y")
    (root / "forge.yaml").write_text(FILE.replace("[conf]", "[conf, below]"))
    assert "[y/N]" in answered("y")
    file = trust.registry()
    kept = json.loads(file.read_text())
    kept[str(root)]["owners"][0] += 1  # it was another user's
    file.write_text(json.dumps(kept))
    assert "[y/N]" in answered("y")


def test_trust_that_cannot_be_kept_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "forge.yaml"))
    found = project.find_project()
    assert found
    with pytest.raises(ConfigError, match="which keeps what you trust, cannot be written"):
        trust.remember(found)


def test_its_modules_can_be_imported_once_it_is_trusted(trusted: Path) -> None:
    from forge.launch.local.processes import search_path

    in_project([])
    assert str(trusted) in search_path().split(os.pathsep)
