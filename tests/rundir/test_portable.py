"""Overrides as a run keeps them: typed again anywhere, they mean the same; and what asks for
the user's consent.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.going_on_helpers import resume, take
from hypothesis import example, given, settings
from hypothesis import strategies as st

import forge
from forge.compose import composition
from forge.compose.grammar import read_override as parse
from forge.compose.portable import portable
from forge.config.problems import quoted
from forge.rundir import directory
from forge.rundir.saved_config import newest
from forge.rundir.untrusted import code_overrides, other_overrides

PLAIN = [
    "train.max_steps=7",
    "optimizer.betas=[0.8,0.9]",
    "~callbacks.x",
    "+callbacks.y={_target_:a.b,c:'d=e'}",
    "eval.sample_prompts=['a,b']",
]


pytestmark = pytest.mark.usefixtures("no_git")


@pytest.fixture(autouse=True)
def _two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def kept(*overrides: str, config_dirs: tuple[str, ...] = ()) -> list[str]:
    config = forge.compose(overrides, config_dirs=config_dirs).validate().config
    return portable(overrides, config_dirs, config)


def text(path: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("words and words")
    return file.resolve()


def test_what_names_no_place_is_kept_as_it_was_typed() -> None:
    assert portable(PLAIN, (), composition.config()) == PLAIN
    assert kept("run.dir=a/b", "seed=3") == ["seed=3"]


def test_paths_become_absolute(tmp_path: Path) -> None:
    file, home = text("my.txt"), Path.home()
    assert kept("data=text", "data.path=my.txt") == ["data=text", f"data.path={file}"]
    assert kept("data=text", "data.path=../here/./my.txt") == ["data=text", f"data.path={file}"]
    assert kept("data.cache_dir='~/cache'") == [f"data.cache_dir={home}/cache"]
    assert kept("data.cache_dir=${oc.env:HOME}/cache") == [f"data.cache_dir={home}/cache"]
    assert kept("data.cache_dir=null") == ["data.cache_dir=null"]


def test_a_step_to_resume_from_stays_a_step() -> None:
    take("run.dir=run", "train.max_steps=50")
    Path("run/checkpoints/step_3").mkdir(parents=True)
    resume("run", "checkpoint.resume_from=3")
    assert directory.own_overrides(Path("run"))[-1] == "checkpoint.resume_from='3'"
    assert resume("run")[1] == []


def config_dir(path: str) -> Path:
    file = Path(path) / "model" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults:\n  - small\n  - _self_\ndim: 512\nn_layers: 3\n")
    return Path(path).resolve()


AWKWARD = [
    "plain",
    """it's "so", a=b, [x] {y:1} (z)""",
    "ünï-日本-🙂 back\\slash\\' #hash 100% a:b",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_a_run_goes_on_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With relative places of data, run directory, --config-dir and search path, whatever they are
    called.
    """
    text(f"{name}/my.txt")
    config_dir(f"{name}/conf")
    where = [
        f"data.path={quoted(name + '/my.txt')}",
        f"data.cache_dir={quoted(name)}",
        f"run.dir={quoted(name + '/run')}",
    ]
    path, _ = take(
        "data=text", "model=mine", "train.max_steps=9", *where, config_dirs=(f"{name}/conf",)
    )
    assert path == tmp_path / "here" / name / "run"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(path) == (path, [])
    assert [
        (c.key, c.after) for c in resume(os.path.relpath(path), "metrics.log_interval=3")[1]
    ] == [("metrics.log_interval", 3)]
    assert newest(path).name == "config.2.yaml"
    monkeypatch.chdir("/")
    assert resume(path) == (path, []), "what was kept the second time continues too"


def test_a_search_path_and_a_tokenizer_go_on_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_dir("a, b")
    Path("conf2").mkdir()
    text("words.txt")
    Path("tok.json").write_text('{"model": {"vocab": {"a": 0, "</s>": 1}}}')
    options = ["tokenizer=file", "tokenizer.path=tok.json", "data=text", "data.path=words.txt"]
    path, _ = take('hydra.searchpath=["a, b", conf2]', "model=mine", *options, "run.dir=run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume(path) == (path, [])
    (tmp_path / "elsewhere" / "tok.json").write_text("{}")
    assert resume(path, f"tokenizer.path={tmp_path}/here/tok.json") == (path, [])


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\\")
@example("a\\'b\\\\'")
@example("'")
@example("")
@example("null")
@example("1e3")
def test_what_is_quoted_reads_back_as_it_was(value: str) -> None:
    override = parse(f"data.path={quoted(value)}")
    assert not hasattr(override, "what"), override
    assert override.value() == value  # type: ignore[union-attr]


ASKS = [
    "run.trust=[mine.]",
    "hydra.searchpath=[pkg://mine.conf]",
    "hydra.searchpath=[conf,'pkg://mine.conf']",
    "+hydra.searchpath=[pkg://mine.conf]",
    r"hydra.searchpath=[pkg\://mine.conf]",  # Hydra takes the backslash away
    "++run.trust=[mine.]",
]


def test_what_asks_for_consent() -> None:
    rest = [
        *PLAIN,
        "hydra.searchpath=[conf]",
        "run.allow_change=[model]",
        "eval.sample_prompts=['run.trust=[x]']",
    ]
    mixed = [rest[0], ASKS[0], *rest[1:], *ASKS[1:]]
    assert code_overrides(mixed) == ASKS
    assert other_overrides(mixed) == rest
