"""docs/architecture.md names what there is, and its road of a value is short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_room_and_file_that_is_named_exists() -> None:
    named = re.findall(r"`((?:forge|launch|conf|tests)/[\w/]*(?:\.py)?)`", PAGE)
    assert len(named) > 25
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_value_goes_through_at_most_twelve_files() -> None:
    road = PAGE.partition("## The road of a value")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)`", road, re.MULTILINE)
    assert len(steps) == len(set(steps)) <= 12
    assert (steps[0], steps[-1]) == ("forge/train.py", "forge/optim/muon.py")
