"""docs/extending.md says what is there: its commands run, and its tables name every moment and
every part.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest
from example_helpers import PACKAGE, ROOT, Verb

from forge.models.contract import PARTS
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.session import Session

FILES = (PACKAGE / "forge_example").glob("*.py")
EXAMPLES = [file for file in FILES if file.stem not in ("__init__", "gated_conv")]  # a whole model
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    """At most 40 lines of code: imports, empty lines and the text at the top are not counted."""
    tree = ast.parse(file.read_text())
    body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    lines = file.read_text().splitlines()
    counted = [lines[n - 1] for node in body[1:] for n in range(node.lineno, node.end_lineno + 1)]
    assert len([line for line in counted if line.strip()]) <= 40


def test_every_moment_has_a_row() -> None:
    moments = {name for name in vars(Callback) if not name.startswith("_")}
    moments -= {"config_path", "reads_gradients"}
    named = set(re.findall(r"`(\w+)\((?:loop|session|state|\))", PAGE))
    assert moments <= named
    assert {name for name in named if name.startswith("on_")} <= moments


def test_every_part_of_a_model_has_a_row() -> None:
    rows = " ".join(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))
    assert all(part in rows for part in PARTS)


@pytest.mark.parametrize(("kind", "fewest"), [(Session, 10), (Loop, 8)])
def test_what_a_session_and_a_loop_offer_exists(kind: type, fewest: int) -> None:
    name = kind.__name__.lower()
    table = PAGE.partition(f"| `{name}.` | is |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.count("|") > 2]
    names = re.findall(r"`(\w+)", " ".join(row for row in rows if "`" in row))
    assert len(names) >= fewest
    text = inspect.getsource(kind)
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.nightly
def test_its_commands_run(verb: Verb, desk: Path) -> None:
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith("    python -m forge.")]
    assert len(lines) == 7
    for line in lines:
        _, _, module, *arguments = shlex.split(line)
        verb(module.removeprefix("forge."), *arguments)
    assert (desk / "smooth.safetensors").is_file()
