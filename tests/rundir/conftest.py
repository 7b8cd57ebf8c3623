"""A folder of one's own for each test, no launcher around it, and no git, which takes longest."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.going_on_helpers import RUN, take

from forge.launch.local import processes


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.rundir.provenance.diff", lambda: "")
    monkeypatch.setattr("forge.rundir.provenance.facts", lambda: {"argv": []})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories that a worker would be started in."""
    paths: list[Path] = []
    monkeypatch.setattr(processes, "start", lambda path, ranks, **_: paths.append(path) or 0)
    return paths


@pytest.fixture
def run(started: list[Path], no_git: None) -> Path:
    return take(*RUN)[0]
