"""The server answers the official client with the texts of forge.generate, whoever else asks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from serving import serving, until

PROMPTS = ["the sea", "a", "ship «é»", "1 the whale said to the man in the white", "  ", "was his"]
MOST = 24


@pytest.fixture
def client(served) -> openai.OpenAI:
    own = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key="-", max_retries=0, http_client=own)


def written(loaded: Any, prompts: Any, **options: Any) -> list[Any]:
    """The same by forge.generate's batches, which share no code with the slots."""
    given = {"max_new_tokens": MOST, "temperature": 1.0, "top_k": 0} | options
    return loaded.continuations(prompts, **given)


def test_texts_are_those_of_generate(client, loaded) -> None:
    """Whole and in a stream, with stop strings, samples, seeds and usage."""
    ask = client.completions.create
    for number, prompt in enumerate(PROMPTS):
        how: Any = {"seed": number, "temperature": 0.9, "stop": ["e", "sh"]}
        expected = written(loaded, [prompt], **how, n=2)
        how |= {"model": "tiny", "prompt": prompt, "max_tokens": MOST, "n": 2}
        whole = ask(**how)
        assert [choice.text for choice in whole.choices] == [each.text for each in expected]
        reasons = ["length" if each.ended == "length" else "stop" for each in expected]
        assert [choice.finish_reason for choice in whole.choices] == reasons
        assert whole.usage.completion_tokens == sum(each.tokens for each in expected)
        texts, usage = ["", ""], None
        for part in ask(**how, stream=True, stream_options={"include_usage": True}):
            for choice in part.choices:
                texts[choice.index] += choice.text
            usage = part.usage or usage
        assert texts == [each.text for each in expected]
        assert usage == whole.usage


def test_a_chat(client, loaded) -> None:
    messages: Any = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    expected = written(loaded, [messages], seed=3)[0]
    how: Any = {"model": "tiny", "messages": messages, "max_tokens": MOST, "seed": 3}
    whole = client.chat.completions.create(**how)
    assert whole.choices[0].message.content == expected.text
    parts = list(client.chat.completions.create(**how, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected.text
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert client.models.list().data[0].id == "tiny"
    assert client.models.retrieve("tiny").owned_by == "forge"


def test_log_probabilities(client, loaded) -> None:
    expected = written(loaded, ["the sea"], logprobs=True, seed=1)[0]
    how: Any = {"model": "tiny", "prompt": "the sea", "max_tokens": MOST, "seed": 1}
    told = client.completions.create(**how, logprobs=3).choices[0].logprobs
    count = len(told.tokens)  # without the ending token
    assert count >= expected.tokens - 1
    assert told.token_logprobs == pytest.approx(expected.logprobs[:count], abs=1e-4)
    assert all(len(top) <= 3 for top in told.top_logprobs)
    chat: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    content = client.chat.completions.create(**chat, logprobs=True, top_logprobs=2, seed=1)
    for token in content.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 2
        assert token.top_logprobs[0].logprob >= token.logprob - 1e-6


def test_an_answer_does_not_depend_on_who_else_asks(loaded) -> None:
    """Sixteen requests of several lengths and options, at 1, 4 and 16 at once: equal texts."""

    def ask(number: int) -> str:
        how: Any = {"seed": number, "temperature": 0.8 + number % 3 / 5, "max_tokens": 8 + number}
        how |= {"top_p": 0.9, "repetition_penalty": 1.2} if number % 2 else {}
        body = {"prompt": PROMPTS[number % 6] * (1 + number // 6), **how}
        reply = httpx.post(f"{address}/v1/completions", json=body, timeout=60, trust_env=False)
        return reply.json()["choices"][0]["text"]

    texts = []
    for slots in (1, 4, 16):
        with serving(loaded, slots=slots) as (address, _), ThreadPoolExecutor(16) as pool:
            texts.append(list(pool.map(ask, range(16))))
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) == 16


def test_a_client_that_vanishes_frees_its_slot(loaded) -> None:
    """In a stream, before a whole answer, and in the queue."""
    with serving(loaded, slots=1, waiting=8) as (address, server):
        engine, slow = server.engine, threading.Event()
        server.ends[False] = frozenset()  # answers that end by their length alone
        draw_next = engine._rows.draw_next
        engine._rows.draw_next = lambda count: (slow.wait(0.05), draw_next(count))[1]  # type: ignore
        body = {"prompt": "the", "stop": [], "max_tokens": 100, "stream": True}
        url = f"{address}/v1/completions"
        with httpx.stream("POST", url, json=body, trust_env=False) as reply:
            lines = reply.iter_lines()  # httpx hangs up when this is forgotten
            next(lines)
            assert engine.live == 1
            waiting = threading.Thread(target=vanish, args=(url, body))
            waiting.start()
            until(lambda: engine.waiting == 1)
            waiting.join()
            until(lambda: engine.waiting == 0)
        until(lambda: engine.live == 0)
        vanish(url, body | {"stream": False})
        until(lambda: engine.counts["cancelled"] == 2 and engine.live == 0)
        slow.set()
        body = {"prompt": "the", "max_tokens": 2}
        assert httpx.post(url, json=body, trust_env=False).status_code == 200


def vanish(url: str, body: dict[str, Any]) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=body, timeout=0.3, trust_env=False)


def test_a_flood_is_refused(loaded) -> None:
    """429 after the queue, and every admitted request is answered."""
    with serving(loaded, slots=2, waiting=3) as (address, server):
        draw_next, gate = server.engine._rows.draw_next, threading.Event()
        server.engine._rows.draw_next = lambda count: (gate.wait(30), draw_next(count))[1]  # type: ignore

        def ask(number: int) -> httpx.Response:
            body = {"prompt": "the", "max_tokens": 5, "seed": number}
            return httpx.post(f"{address}/v1/completions", json=body, timeout=60, trust_env=False)

        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(ask, number) for number in range(40)]
            until(lambda: sum(each.done() for each in asked) >= 35)
            gate.set()
        replies = [each.result() for each in asked]
        codes = [reply.status_code for reply in replies]
        assert (codes.count(200), codes.count(429)) == (5, 35)
        refused = next(reply for reply in replies if reply.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "queue is full" in refused.json()["error"]["message"]
        server.engine.close()
        assert ask(0).status_code == 503
        assert httpx.get(f"{address}/health", trust_env=False).status_code == 503


def test_sixteen_streams_at_once(loaded) -> None:
    """By the official client: all are live in one step, and each has its own text."""
    with serving(loaded, slots=16) as (address, server):
        server.ends[False] = frozenset()  # answers that end by their length alone
        engine, live, slow = server.engine, [], threading.Event()
        draw_next = engine._rows.draw_next

        def noted(count: int) -> Any:
            live.append(engine.live)
            slow.wait(0.1 if max(live) < 16 else 0)
            return draw_next(count)

        engine._rows.draw_next = noted  # type: ignore[method-assign]
        own = httpx.Client(trust_env=False, timeout=60)
        asked: Any = {"model": "tiny", "prompt": "the ship", "max_tokens": 90, "temperature": 0.9}
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-", http_client=own)

        def text_of(number: int) -> str:
            stream = client.completions.create(**asked, seed=number, stream=True)
            return "".join(choice.text for part in stream for choice in part.choices)

        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(text_of, range(16)))
        assert max(live) == 16
        engine._rows.draw_next = draw_next  # type: ignore[method-assign]
        assert [text_of(number) for number in (0, 7, 15)] == [texts[0], texts[7], texts[15]]
        assert len(set(texts)) == 16
