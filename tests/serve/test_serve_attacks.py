"""Clients that harm: slow, endless, deaf, many; others are answered, in the same memory."""

from __future__ import annotations

import json
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import LIMITS, serving, until

from forge.serve import app

SENT = 400 << 20  # bytes of an endless body, if nobody ends it
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connected(http: httpx.Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", http.base_url.port or 0), timeout=20)


def status(reply: bytes) -> int:
    return int(reply.split(b" ")[1])


def test_slow_clients(http, monkeypatch) -> None:
    """A body that does not arrive is given up; half a head holds a connection alone."""
    monkeypatch.setattr(app, "PATIENCE", 0.3)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(http)) for _ in range(60)]
        for plain in slow[:50]:
            plain.sendall(HEAD[:70])
        for plain in slow[50:]:
            plain.sendall(HEAD + b"Content-Length: 100\r\n\r\n" + b'{"prompt"')
        asked = {"prompt": "the", "max_tokens": 2}
        assert http.post("/v1/completions", json=asked).status_code == 200
        assert {status(plain.recv(4000)) for plain in slow[50:]} == {408}
    assert http.get("/health").status_code == 200


def test_bodies_and_heads_that_never_end(http, monkeypatch) -> None:
    """They are cut off after their limit, not read to the end that never comes."""
    monkeypatch.setattr(app, "LINGERING", 0.1)
    for begin, part in (
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % 4096 + b" " * 4096 + b"\r\n"),
        (HEAD + b"X-Long: ", b"a" * 4096),
    ):
        with connected(http) as plain:
            plain.sendall(begin)
            sent = 0
            try:
                while sent < SENT:
                    plain.sendall(part)
                    sent += len(part)
            except OSError:
                pass
            assert sent < SENT
    assert http.get("/health").status_code == 200


def test_a_prompt_and_an_answer_have_an_end(http) -> None:
    """An answer is as long as the model reads, whatever is asked for."""
    reply = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 10**9}).json()
    assert reply["usage"]["total_tokens"] <= 128
    assert http.post("/v1/completions", json={"prompt": [5] * 128}).status_code == 400


def test_a_client_that_does_not_read(loaded) -> None:
    """Its answer is written, and the slot is free, though nobody takes the stream."""
    with serving(loaded, slots=1) as (address, server):
        server.ends[False] = frozenset()
        body = json.dumps({"prompt": "the", "stream": True, "max_tokens": 100, "logprobs": 5})
        port = httpx.URL(address).port or 0
        with socket.create_connection(("127.0.0.1", port), timeout=20) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            length = f"Content-Length: {len(body)}\r\n\r\n"
            deaf.sendall(HEAD + length.encode() + body.encode())
            until(lambda: server.engine.counts["tokens"] > 0)
            until(lambda: server.engine.live == 0)
            again = {"prompt": "the", "max_tokens": 2}
            url = f"{address}/v1/completions"
            assert httpx.post(url, json=again, trust_env=False, timeout=20).status_code == 200


@pytest.mark.nightly
def test_the_memory_of_a_flood_is_flat(loaded) -> None:
    """Waves of requests of the largest size, nearly all refused: later ones take no more memory."""
    page = resource.getpagesize()

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page / 2**20

    with ExitStack() as stack, serving(loaded, slots=2, waiting=3) as (address, server):
        draw_next, gate = server.engine._rows.draw_next, threading.Event()
        server.engine._rows.draw_next = lambda count: (gate.wait(60), draw_next(count))[1]  # type: ignore
        url = f"{address}/v1/completions"
        body: Any = {"prompt": "the", "max_tokens": 5, "user": "u" * (LIMITS.body - 200)}

        def refused(_: int) -> int:
            return client.post(url, json=body).status_code

        limits = httpx.Limits(max_connections=30)
        client = stack.enter_context(httpx.Client(timeout=60, trust_env=False, limits=limits))
        with ThreadPoolExecutor(5) as pool, ThreadPoolExecutor(20) as flood:
            admitted = [pool.submit(refused, number) for number in range(5)]
            engine = server.engine  # `live` leaves out a request whose prompt is being read
            until(lambda: len(engine._answers) + engine.waiting == 5)
            sizes = []
            for _ in range(6):
                assert set(flood.map(refused, range(60))) == {429}
                sizes.append(resident())
            gate.set()
            assert {each.result() for each in admitted} == {200}
    print(sizes)
    assert max(sizes[2:]) - sizes[1] < 8, sizes
