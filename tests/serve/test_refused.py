"""Requests that are refused: bodies, fields, paths, origins, names."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

SAY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "no JSON"),
        (b"[]", 400, "a JSON object"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"[" * 10_000, 400, "no JSON"),
        (b'{"temperature": NaN}', 400, "NaN"),
        (b'{"temperature": 1e999, "messages": []}', 400, "temperature: a number from 0 to 100"),
        (b"{}", 400, "messages: a list"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "half a surrogate"),
        ({"messages": "hi"}, 400, "messages: a list"),
        ({"messages": [{"role": "root", "content": ""}]}, 400, "messages[0]: the role is one of"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0]: the content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "parts of text",
        ),
        ({**SAY, "n": 5}, 400, "n=5: at most 4"),
        ({**SAY, "max_tokens": 0}, 400, "max_tokens: an integer from 1"),
        ({**SAY, "max_tokens": True}, 400, "max_tokens: an integer"),
        ({**SAY, "top_p": 0}, 400, "top_p=0.0: must be above 0"),
        ({**SAY, "seed": "1"}, 400, "seed: an integer"),
        ({**SAY, "stop": ""}, 400, "stop: a text"),
        ({**SAY, "stop": ["a"] * 17}, 400, "up to 16"),
        ({**SAY, "stream": 1}, 400, "stream: true or false"),
        ({**SAY, "top_logprobs": 2}, 400, "give logprobs=true"),
        ({**SAY, "presence_penalty": 1}, 400, "presence_penalty: not supported"),
        ({**SAY, "tools": [{"type": "function"}]}, 400, "tools: not supported"),
        ({**SAY, "temprature": 1}, 400, "no field 'temprature'"),
        ({**SAY, "n": 2, "temperature": 0}, 400, "all answers would be the same"),
        ({**SAY, "model": "gpt"}, 404, "the model is 'tiny'"),
        ({"messages": SAY["messages"] * 6}, 413, "messages: at most 5"),
        ({"messages": [{"role": "user", "content": "a" * 3001}]}, 413, "3,001 characters"),
        ({"messages": [{"role": "user", "content": "a " * 1400}]}, 400, "tokens, and 128 tokens"),
        ({"messages": [{"role": "user", "content": "a"}], "user": "b" * 30_000}, 413, "bytes"),
    ],
)
def test_a_body(http, body: Any, status: int, said: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = http.post("/v1/chat/completions", content=raw)
    assert (reply.status_code, said in reply.json()["error"]["message"]) == (status, True), (
        reply.text
    )


def test_a_body_without_a_stated_length(http) -> None:
    parts = (b" " * 1000 for _ in range(1000))
    assert http.post("/v1/completions", content=parts).status_code == 413


@pytest.mark.parametrize("prompt", [["a", "b"], [-1], [10**9], [1.5], {"a": 1}, 3])
def test_a_prompt(http, prompt: Any) -> None:
    assert http.post("/v1/completions", json={"prompt": prompt}).status_code in (400, 413)


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.html"]
)
def test_a_path(http, path: str) -> None:
    reply = http.get(path)
    assert (reply.status_code, "no such path" in reply.text) == (404, True)
    assert http.get("/v1/completions").status_code == 405
    assert http.get("/v1/models/other").status_code == 404


def test_other_origins_and_names(http) -> None:
    """A page of another site, and a name that leads here."""
    port = http.base_url.port
    own = f"http://127.0.0.1:{port}"
    for origin, status in (
        (own, 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        (f"http://127.0.0.1:{port + 1}", 403),
        (f"http://127.0.0.1:{port}.evil.example", 403),
    ):
        reply = http.post("/v1/chat/completions", json=SAY, headers={"origin": origin})
        assert reply.status_code == status, origin
        assert not [name for name in reply.headers if name.startswith("access-control")]
    for host, status in (
        (f"localhost:{port}", 200),
        (f"[::1]:{port}", 200),
        (f"evil.example:{port}", 403),
        ("127.0.0.1.evil.example", 403),
    ):
        assert http.get("/health", headers={"host": host}).status_code == status, host


def test_the_page_and_the_counts(http) -> None:
    """The page loads nothing from elsewhere."""
    assert http.post("/v1/chat/completions", json=SAY).status_code == 200
    page = http.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    for address in ("http:", "https:", "//cdn", "@import", "src="):
        assert address not in page.text.replace("http://www.w3.org/2000/svg", "")
    lines = http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines)
    assert float(values["forge_generated_tokens_total"]) >= 2
    assert float(values['forge_responses_total{status="200"}']) >= 2
    assert values["forge_slots"] == "16"


def test_a_request_that_is_no_http(served, http) -> None:
    """The connection is closed, and the server continues."""
    for raw in (b"\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", http.base_url.port), timeout=10) as plain:
            plain.sendall(raw)
            assert plain.recv(100).split(b" ")[1] in (b"400", b"403")
    assert http.get("/health").json() == {"status": "ok", "model": "tiny"}
