"""What the tests of the config side share: no launcher around them, and a folder of the user's own YAML files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a file into a config folder of the user's own and give the folder's path."""

    def write_file(name: str, text: str) -> str:
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return str(tmp_path / "conf")

    return write_file
