"""A server of the tiny run, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.tiny import TWO_LAYERS
from serving import serving

import forge
from forge import cli, worker
from forge.rundir import directory
from forge.serve.app import Server


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A run of four steps whose model reads 128 tokens."""
    place = tmp_path_factory.mktemp("served") / "talker"
    own = ["data=text", f"data.path={text_file}", f"run.dir={place}", "run.inline=true"]
    own += ["eval.enabled=false", *TWO_LAYERS, "train.max_steps=4", "model.max_seq_len=128"]
    composition, resolution = cli.resolved(own)
    path, _ = directory.create(resolution, overrides=composition.overrides)
    assert worker.main([str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def loaded(talker: Path) -> Any:
    return forge.load(talker)


@pytest.fixture(scope="session")
def served(loaded: Any) -> Iterator[tuple[str, Server]]:
    with serving(loaded, slots=16) as both:
        yield both


@pytest.fixture
def http(served: tuple[str, Server]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[0], timeout=30, trust_env=False) as client:
        yield client
