"""A server in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from forge.serve.app import Server
from forge.serve.asking import Limits
from forge.serve.engine import Engine

LIMITS = Limits(body=20_000, messages=5, characters=3000, n=4)


@contextmanager
def serving(loaded: Any, *, weights: Any = None, **options: Any) -> Iterator[tuple[str, Server]]:
    """The address and the parts of a server."""
    engine = Engine(loaded.model, loaded.tokenizer, loaded.device, **options)
    server = Server(engine.start(), "tiny", LIMITS, talks=False, weights=weights)
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
