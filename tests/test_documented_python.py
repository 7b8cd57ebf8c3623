"""docs/python.md names all there is, and its examples run from top to bottom."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import forge
from forge.launch.local.background import Background
from forge.report.framed import Framed
from forge.rundir.outcome import Result
from forge.sweeps import Sweep
from forge.training.loaded import Loaded

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
ROWS = {
    "forge.train(cfg)": Result,
    "forge.train(cfg, background=True)": Background,
    "forge.load(run, step)": Loaded,
    "forge.sweep(options, over)": Sweep,
    "forge.report(sweep)": Framed,
}


def names_of(kind: type) -> set[str]:
    """What a user finds in it; a class without fields says in `__init__` what it keeps."""
    own = {name for one in kind.__mro__[:-1] for name in vars(one) if not name.startswith("_")}
    return own | {field.name for field in (fields(kind) if kind is not Background else ())}


@pytest.mark.parametrize("call", ROWS)
def test_the_table_names_what_there_is(call: str) -> None:
    (gives,) = re.findall(rf"^\| `{re.escape(call)}` \| (.*) \|$", PAGE, re.MULTILINE)
    named = set(re.findall(r"`(\w+)(?:\(\))?`", gives)) - {"run_dir"}
    assert named <= names_of(ROWS[call])
    internal = {"to_the_end", "report", "higher_is_better", "path", "run_dir", "page"}
    assert names_of(ROWS[call]) - internal <= named | internal


def test_every_name_has_its_row() -> None:
    rows = set(re.findall(r"^\| `forge\.(\w+)\(", PAGE, re.MULTILINE))
    assert rows == set(forge.__all__) - {"ConfigError"}


@pytest.mark.nightly
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    known: dict[str, Any] = {}
    exec(compile(code, "docs/python.md", "exec"), known)
    assert known["result"].status == known["done"].status == "finished"
    assert known["stopped"].status == "stopped"
    assert known["trained"].evaluate()["loss"] == known["longer"].metrics["eval/loss"]
    assert known["report"].page.is_file()
    assert known["model"].step == 60
