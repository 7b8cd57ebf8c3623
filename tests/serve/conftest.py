"""A server of the tiny run, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from helpers.tiny import TWO_LAYERS

import forge
from forge import cli, worker
from forge.rundir import directory
from forge.serve.app import Server
from forge.serve.asking import Limits
from forge.serve.engine import Engine

LIMITS = Limits(body=20_000, messages=5, characters=3000, n=4)


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


@contextmanager
def serving(loaded: Any, **options: Any) -> Iterator[tuple[str, Server]]:
    """The address and the parts of a server."""
    engine = Engine(loaded.model, loaded.tokenizer, loaded.device, **options)
    server = Server(engine.start(), "tiny", LIMITS, talks=False)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        server.app(), http="h11", ws="none", lifespan="off", log_level="critical"
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, args=([listening],), daemon=True)
    thread.start()
    until(lambda: runner.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", server
    finally:
        runner.should_exit = runner.force_exit = True
        engine.close()
        thread.join(10)
        listening.close()


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def served(loaded: Any) -> Iterator[tuple[str, Server]]:
    with serving(loaded, slots=16) as both:
        yield both


@pytest.fixture
def http(served: tuple[str, Server]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served[0], timeout=30, trust_env=False) as client:
        yield client
