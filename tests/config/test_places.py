"""An address, such as s3://bucket/runs, where a file or folder of this machine is meant: it is
refused for every option that names one, and no folder `s3:` is made.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

from forge import check, export, prepare, train
from forge.compose import composition
from forge.config.bounds import check_bounds
from forge.config.field import Section
from forge.config.root import Config
from forge.config.schemas import walk_options

OPTIONS = {key: (schema, field) for key, _, schema, field in walk_options() if field.name[0] != "_"}
PLACES = {
    key: given
    for key, given in OPTIONS.items()
    if given[1].metadata["path"] or given[1].metadata["folder"]
}
NO_PLACES = {"data.file_pattern", "data.hf_data_dir", "data.hf_data_files"}
"""Parts of what another option names."""


def test_every_option_that_is_called_a_place_is_one() -> None:
    called = {
        key
        for key, (_, field) in OPTIONS.items()
        if str(field.type).startswith("str")
        and {"dir", "root", "path", "file", "files"} & set(field.name.split("_"))
    }
    assert called - set(PLACES) == NO_PLACES
    ours = {"run.root", "run.dir", "sweep.root", "checkpoint.dir", "data.cache_dir"}
    assert set(PLACES) >= {*ours, "metrics.tensorboard_dir", "profiling.trace_dir", "data.path"}


REMOTE = {key for key, (_, field) in PLACES.items() if field.metadata["address"]}
LOCAL = {key: given for key, given in PLACES.items() if key not in REMOTE}


def test_options_that_take_an_address() -> None:
    assert {"checkpoint.init_from", "checkpoint.resume_from"} <= REMOTE
    section = composition.config().checkpoint
    for address in ("s3://b/x", "gs://b/x", "hf://b/x", "file:///b/x"):
        section.init_from = address
        assert not list(check_bounds(section))
    section.init_from = "https://b/x"
    assert [problem.rule for problem in check_bounds(section)] == ["address"]


@pytest.mark.parametrize(("schema", "field"), LOCAL.values(), ids=LOCAL)
def test_an_address_is_refused(schema: type[Section], field: dataclasses.Field) -> None:
    section = composition.config() if schema is Config else schema()
    for address in ("s3://b/x", "gs://b/x", "hf://b/x", "HTTPS://b/x", "file:///b/x"):
        setattr(section, field.name, address)
        (problem,) = check_bounds(section)
        assert (problem.key, problem.rule) == (f"{field.name}={address}", "address")
        assert f"{address.partition('://')[0]}:// begins an address" in problem.what
    assert problem.fix == f"{field.name}=/b/x"
    setattr(section, field.name, "a/s3:/x")
    assert not list(check_bounds(section))


TYPED = {
    "run.root": ["run.root=s3://b/r"],
    "run.dir": ["run.dir=file://{tmp}/r"],
    "checkpoint.init_from": ["checkpoint.init_from=https://o/m"],
    "sweep.root": ["-m", "seed=1,2", "sweep.root=gs://b/s"],
    "eval.sets.mine.path": ["+eval.sets.mine.path=s3://b/x.txt"],
    "data.sources.a.path": ["data=mix", "+data.sources.a.path=s3://b/x.txt"],
    "trackers.csv.file_name": ["+tracker=csv", "trackers.csv.file_name=s3://b/x.csv"],
}


@pytest.mark.parametrize(("key", "typed"), TYPED.items(), ids=TYPED)
def test_a_command_refuses_it_and_makes_nothing(
    key: str,
    typed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [text.format(tmp=tmp_path) for text in typed]
    assert train.main(words) == 2
    if "-m" not in words:
        assert check.main(words) == 2
    said = capsys.readouterr().err
    assert f"{key}=" in said
    assert "begins an address" in said
    assert not list(tmp_path.iterdir())


def test_verbs_and_project_files_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        export.main(["runs/mine", "s3://b/model"])
    assert ended.value.code == 2
    assert prepare.main(["gs://b/tokens", "data=text"]) == 2
    new, importing = (
        importlib.import_module(f"forge.{name}") for name in ("new.__main__", "import")
    )
    assert new.main(["s3://b/demo"]) == importing.main(["a", "s3://b/run"]) == 2
    assert capsys.readouterr().err.count("begins an address") == 4
    (tmp_path / "forge.yaml").write_text("defaults: ['run.root=s3://b/r']\n")
    monkeypatch.setattr("sys.path", sys.path[:])  # a project's root is added
    monkeypatch.setattr("forge.compose.trust.is_trusted", lambda project: True)
    assert check.main([]) == 2
    assert "run.root=s3://b/r" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["forge.yaml"]
