"""A package of the user's own on the search path: its schemas are ours' equals, and what is wrong
with it is said.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.refusing import only, problems, resolved
from hydra.core.config_store import ConfigStore

from forge.config import register, schemas
from forge.config.field import opt
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.train import Train
from forge.rundir import saved_config

SEARCH = ["hydra.searchpath=[pkg://mine.conf]", "run.trust=[mine.]"]
SCHEMA = """
    from dataclasses import dataclass
    from forge.config import register
    from forge.config.field import opt
    from forge.config.model.layer import Model

    @dataclass(kw_only=True)
    class Wide(Model):
        _target_: str = "mine.model.Wide"
        width: int = opt(64, "how wide it is", gt=0)

    register("model", "wide", Wide)
"""
OPTION = """\
# A wide one.
defaults:
  - /schema/model@_here_: wide
  - _self_
vocab_size: 4096
max_seq_len: 512
width: 32
"""
Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Writes the package `mine`: file -> text; what it registers and imports is gone afterwards."""
    before = {group: dict(variants) for group, variants in schemas.SCHEMAS.items()}
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> None:
        for name, text in ({"mine/__init__.py": "", "mine/conf/__init__.py": ""} | files).items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")

    yield write
    for group, variants in before.items():
        for name in set(schemas.SCHEMAS[group]) - set(variants):
            del schemas.SCHEMAS[group][name]
            ConfigStore.instance().repo["schema"][group].pop(f"{name}.yaml", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture
def wide(package: Package) -> None:
    package({"mine/conf/__init__.py": SCHEMA, "mine/conf/model/wide.yaml": OPTION})


def test_its_mistakes_are_found_like_ours(wide: None, tmp_path: Path) -> None:
    chosen = [*SEARCH, "model=wide"]
    assert only([*chosen, "model.widht=3"]).fix == "did you mean model.width=3?"
    assert only([*chosen, "model.width=0"]).what == "model.width must be greater than 0."
    assert only([*chosen, "model.max_seq_len=8", "train.seq_len=9"]).rule == "train.seq_len"
    assert only([*SEARCH, "model=wider"]).fix.startswith("did you mean model=wide")
    what = "Decoder has no option 'width'. It belongs to model=wide."
    assert only([*SEARCH, "model.width=3"]).what == what
    (tmp_path / "mine/conf/model/wide.yaml").write_text(OPTION.replace("width: 32", "widht: 32"))
    found = only(chosen)
    assert (found.what, found.fix) == ("Wide has no option 'widht'.", "did you mean width: 32?")
    assert found.where.endswith("mine/conf/model/wide.yaml:7")


def test_it_survives_the_run_directory_of_who_trusts_it(wide: None, tmp_path: Path) -> None:
    config = resolved([*SEARCH, "model=wide"]).config
    saved_config.save_config(config, tmp_path / "config.yaml")
    again = saved_config.load_config(tmp_path / "config.yaml", trust=["mine."])
    assert (type(again.model), again.model) == (type(config.model), config.model)
    with pytest.raises(ValueError, match=r"its schema mine\.conf\.Wide is not under a trusted"):
        saved_config.load_config(tmp_path / "config.yaml", trust=[])
    text = (tmp_path / "config.yaml").read_text().replace("mine.conf.Wide", "mine.gone.Wide")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"Wide cannot be used: the package mine has no 'gone'\."):
        saved_config.load_config(tmp_path / "config.yaml", trust=["mine."])


INIT = "mine/conf/__init__.py"
FAILS = "importing mine.conf fails: "
BROKEN = [
    ("nowhere.conf", {}, "there is no package nowhere, which nowhere.conf is in."),
    ("mine.config", {}, "the package mine has no 'config'."),
    ("mine.conf", {INIT: "1 / 0"}, f"{FAILS}ZeroDivisionError: division by zero."),
    ("mine.conf", {INIT: "import xy"}, f"{FAILS}ModuleNotFoundError: No module named 'xy'."),
    ("mine.text", {"mine/text.py": ""}, "mine.text is no package."),
    ("mine.bare", {"mine/bare/x.yaml": ""}, "mine.bare is no package."),
]


@pytest.mark.parametrize(("entry", "files", "what"), BROKEN)
def test_what_is_wrong_with_a_package_is_said(
    package: Package, entry: str, files: dict[str, str], what: str
) -> None:
    package(files)
    found = only([f"hydra.searchpath=['pkg://{entry}']"])
    assert found.what.startswith(what)
    assert found.fix
    assert found.where == "command line"


@dataclass(kw_only=True)
class Other(Model):
    """A schema that registers under a name that is taken."""

    _target_: str = "mine.Other"
    size: int = opt(1, "size")


class Undecorated(Other):
    """Adds an option and forgets to say that it is a dataclass."""

    more: int = opt(1, "more")


REFUSED = [
    ("train", "mine", Train, "only these groups take further schemas: model, tokenizer, data, "),
    (
        "model",
        "mine",
        Train,
        "must be a dataclass(kw_only=True) that subclasses forge.",
    ),
    ("model", "mine", Undecorated, "must be a dataclass(kw_only=True) that subclasses forge."),
    ("model", "decoder", Other, "the name is taken by forge.config.model.decoder.Decoder"),
]


@pytest.mark.parametrize(("group", "name", "schema", "said"), REFUSED)
def test_what_cannot_be_registered(group: str, name: str, schema: type, said: str) -> None:
    with pytest.raises(ValueError, match="register") as raised:
        register(group, name, schema)
    assert said in str(raised.value)


def test_a_package_that_registers_wrongly_is_a_problem_of_the_search_path(package: Package) -> None:
    package({"mine/conf/__init__.py": SCHEMA.replace('"wide"', '"decoder"')})
    found = problems(SEARCH)
    assert "the name is taken by forge.config.model.decoder.Decoder" in found[0].what
    assert schemas.SCHEMAS["model"]["decoder"] is Decoder


def test_registering_the_same_again_is_no_mistake(wide: None) -> None:
    resolved([*SEARCH, "model=wide"])
    for name in ("mine.conf", "mine"):
        del sys.modules[name]
    assert type(resolved([*SEARCH, "model=wide"]).config.model).__name__ == "Wide"
