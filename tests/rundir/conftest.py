"""A run directory in a folder of its own, for verbs that start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from going_on_helpers import RUN, take

from forge.launch.local import processes


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories that a worker would be started in."""
    paths: list[Path] = []
    monkeypatch.setattr(processes, "start", lambda path, ranks, **_: paths.append(path) or 0)
    return paths


@pytest.fixture
def run(started: list[Path]) -> Path:
    return take(*RUN)[0]
