"""docs/extending.md says what is there: its commands run, and its tables name every moment and
every part.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from example_helpers import ROOT, Verb

from forge.models.contract import PARTS
from forge.training.callback import Callback
from forge.training.loop import Loop

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


def test_every_moment_has_a_row() -> None:
    moments = {name for name in vars(Callback) if not name.startswith("_")} - {"config_path"}
    named = set(re.findall(r"`(\w+)\((?:loop|state|\))", PAGE))
    assert moments <= named
    assert {name for name in named if name.startswith("on_")} <= moments


def test_every_part_of_a_model_has_a_row() -> None:
    rows = " ".join(re.findall(r"^\| `(\w+)", PAGE, re.MULTILINE))
    assert all(part in rows for part in PARTS)


def test_what_a_loop_offers_exists(tmp_path: Path) -> None:
    table = PAGE.partition("| `loop.` | is |")[2].partition("\n\n")[0]
    names = re.findall(
        r"`(\w+)",
        " ".join(
            line.split("|")[1] for line in table.splitlines() if line.count("|") > 2 and "`" in line
        ),
    )
    attributes = set(dir(Loop)) | {"config", "run_dir", "state"}
    assert len(names) >= 7
    assert set(names) - {"name"} <= attributes


@pytest.mark.nightly
def test_its_commands_run(verb: Verb, desk: Path) -> None:
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith("    python -m forge.")]
    assert len(lines) == 5
    for line in lines:
        _, _, module, *arguments = shlex.split(line)
        verb(module.removeprefix("forge."), *arguments)
    assert (desk / "smooth.safetensors").is_file()
