"""Servers that are down, slow or of another kind: one message each, and no completion is lost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from forge.config.rollouts.openai import OpenAIRollout
from forge.data.sources.prompts import PromptRow
from forge.data.tokenizers.byte_text import ByteText
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.parallel.ranks import Ranks
from forge.rollouts.served import ServedSampler

END = 256
Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]


def right(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """As vLLM answers: ids and log-probabilities up to the ending token, the text without it."""
    if path.endswith("/models"):
        return 200, {"data": [{"id": "policy"}]}
    if path.endswith("/load"):
        return 200, {}
    ids = [65 + body["seed"] % 20, 66, END][: body["max_tokens"]]
    choice: dict[str, Any] = {"index": 0, "text": bytes(ids[:2]).decode()}
    choice |= {"finish_reason": "stop" if ids[-1] == END else "length", "token_ids": ids}
    choice |= {
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": [-0.5] * len(ids)},
    }
    return 200, {"choices": [choice]}


def without(name: str) -> Answer:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, content = right(path, body)
        for choice in content.get("choices", []):
            choice[name] = None
        return status, content

    return answer


def with_choice(**values: Any) -> Answer:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, content = right(path, body)
        for choice in content.get("choices", []):
            choice.update(values)
        return status, content

    return answer


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server, and the bodies that it was sent."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(*answer(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            bodies.append(body | {"key": self.headers["authorization"], "path": self.path})
            self._send(*answer(self.path, body))

        def _send(self, status: int, content: Any) -> None:
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *arguments: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}/v1", bodies
    finally:
        made.shutdown()
        made.server_close()


def sampler(url: str, **options: Any) -> ServedSampler:
    given: dict[str, Any] = {
        "num_generations": 3,
        "max_new_tokens": 5,
        "retries": 0,
        "timeout": 5.0,
    }
    section = OpenAIRollout(url=url, reload=[f"{url}/load"], **given | options)
    tokenizer = Tokenizer(ByteText("<|end|>"), eos_token="<|end|>")
    hand_over = lambda rollout, tell: tell(f"/weights/{rollout}")  # noqa: E731
    return ServedSampler(tokenizer, section, 1, Ranks(), hand_over=hand_over)


PROMPTS = [PromptRow(prompt=word, ids=tuple(word.encode()), columns={}) for word in ("ab", "c")]


def test_what_is_asked_and_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, cuts that are off, a seed for each completion; the same at each try; and weights."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    written = []
    for _ in range(2):
        with server(right) as (url, bodies):
            body = {"method": "reload", "kwargs": {"paths": ["{folder}"]}}
            made = sampler(url, temperature=0.7, stop=["zz"], reload_body=body)
            made.prepare(4)
            written.append(made.write(PROMPTS, 4))
        told, *asked = bodies
        assert (told["path"], told["method"]) == ("/v1/load", "reload")
        assert told["kwargs"] == {"paths": ["/weights/4"]}
        assert sorted(body["prompt"] for body in asked) == [[97, 98]] * 3 + [[99]] * 3
        assert len({body["seed"] for body in asked}) == 6
        for body in asked:
            assert (body["model"], body["key"]) == ("policy", "Bearer secret")
            assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 1.0, 0)
            assert (body["stop"], body["stop_token_ids"], body["n"]) == (["zz"], [END], 1)
            assert (body["return_token_ids"], body["logprobs"]) == (True, 0)
    first, second = written
    assert first == second
    assert [(row.prompt, row.number) for row in first] == [(p, n) for p in (0, 1) for n in range(3)]
    for row in first:
        assert (row.ids[-1], row.finish, row.logprobs) == (END, "stop", [-0.5] * 3)
        assert row.text == bytes(row.ids[:2]).decode()
    with server(right) as (url, _):
        (cut, *_), _ = sampler(url, max_new_tokens=2).write(PROMPTS, 0)[:3], None
    assert (cut.finish, len(cut.ids)) == ("length", 2)


FAULTS: dict[str, tuple[Answer, str]] = {
    "no such model": (
        lambda path, body: (
            (404, {"error": {"message": "The model `policy` does not exist."}})
            if body
            else right(path, body)
        ),
        "status 404: The model `policy` does not exist.",
    ),
    "no ids": (without("token_ids"), "it returns no token_ids"),
    "no logprobs": (without("logprobs"), "it returns no logprobs.token_logprobs"),
    "a hole": (with_choice(logprobs={"token_logprobs": [-1, None, -1]}), "it returns no logprobs"),
    "fewer": (with_choice(logprobs={"token_logprobs": [-1.0]}), "3 token ids and 1 log-prob"),
    "another prompt": (with_choice(prompt_token_ids=[1]), "it read other tokens"),
    "another end": (
        with_choice(token_ids=[65, 66, 67], finish_reason="stop"),
        "ended a completion at token 67, which ends no text",
    ),
    "other ids": (with_choice(token_ids=[65, 999, END]), "ids below 257 were asked for"),
    "too long": (
        with_choice(token_ids=[65] * 8 + [END], logprobs={"token_logprobs": [-1.0] * 9}),
        "9 tokens, up to id 256",
    ),
    "no JSON": (lambda path, body: (200, b"<html>"), "its answer is no JSON"),
    "no choices": (
        lambda path, body: (200, {"object": "x"}) if body else right(path, body),
        "its answer has no choices",
    ),
    "two models": (
        lambda path, body: (200, {"data": [{"id": "a"}, {"id": "b"}]}),
        "rollout.model: the server has a, b",
    ),
    "an error of its own": (
        lambda path, body: (500, b"out of memory"),
        "status 500: out of memory",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_message(name: str) -> None:
    answer, message = FAULTS[name]
    with server(answer) as (url, _), pytest.raises(ValueError) as caught:
        sampler(url).write(PROMPTS, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_server_and_a_slow_one() -> None:
    with server(right) as (url, _):
        pass
    with pytest.raises(ValueError, match="Connection refused"):
        sampler(url).write(PROMPTS, 0)

    def slow(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        time.sleep(0.5 if body else 0)
        return right(path, body)

    with server(slow) as (url, _), pytest.raises(ValueError, match=r"within rollout.timeout=0.2 s"):
        sampler(url, timeout=0.2).write(PROMPTS, 0)


def test_busy_servers_are_asked_again() -> None:
    """A full queue as often as needed, and another fault as often as the option says."""
    for status, retries in ((429, 0), (503, 1)):
        refused: set[int] = set()

        def busy(
            path: str, body: dict[str, Any], status: int = status, refused: set[int] = refused
        ) -> tuple[int, Any]:
            if body and body["seed"] not in refused:
                refused.add(body["seed"])
                return status, {"error": {"message": "full"}}
            return right(path, body)

        with server(busy) as (url, bodies):
            rows = sampler(url, retries=retries).write(PROMPTS, 0)
        assert (len(rows), len(bodies)) == (6, 12)
