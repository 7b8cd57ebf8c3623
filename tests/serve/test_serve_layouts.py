"""The engine on the ranks of a layout writes what one process writes, and ends with its ranks."""

from __future__ import annotations

import copy
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from helpers.ranks import on_ranks
from serving import until

from forge.models.token_distribution import Sampling
from forge.resolve.reading import reading_config
from forge.serve import lockstep
from forge.serve.engine import Engine, Piece, Request
from forge.serve.lockstep import Lead, follow

CPU = torch.device("cpu")
SLOTS = (1, 4, 16)
REQUESTS = 16
GONE = 5  # a request whose client goes away


def asked(number: int, tokenizer: Any, pieces: queue.Queue[tuple[int, Piece]]) -> Request:
    """A request; all differ in length and options."""
    prompt = tokenizer.encode("the ship and the white whale" * (1 + number % 4))[number % 3 :]
    how: Any = {"temperature": 0.7 + number % 3 / 5, "seed": number}
    how |= {"top_p": 0.9, "repetition_penalty": 1.2} if number % 2 else {}
    return Request(
        prompt=tuple(prompt),
        put=lambda piece: pieces.put((number, piece)),
        most=70 if number == GONE else 6 + number,
        sampling=Sampling(**how),
        ends=frozenset({tokenizer.end_id}),
        stop=("sh",) if number % 5 == 0 else (),
        n=2 if number == 3 else 1,
        top=2 if number % 4 == 0 else None,
    )


def answers(engine: Engine, requests: int = REQUESTS) -> dict[tuple[int, int], str]:
    """Texts by request and answer, of requests that come at once; one is cancelled meanwhile."""
    pieces: queue.Queue[tuple[int, Piece]] = queue.Queue()
    numbers = [n for n in range(requests) if n != 3 or engine.slots > 1]  # it needs two slots
    each = {number: asked(number, engine.tokenizer, pieces) for number in numbers}
    for request in each.values():
        engine.submit(request)
    texts: dict[tuple[int, int], str] = {}
    left = sum(request.n for number, request in each.items() if number != GONE)
    while left:
        number, piece = pieces.get(timeout=60)
        assert not piece.error
        if number == GONE:
            each[number].cancel()
            continue
        place = number, piece.answer
        texts[place] = texts.get(place, "") + piece.text
        left -= piece.finish is not None
    return texts


@pytest.mark.parametrize(
    ("layout", "apart"), [("tp2", False), ("fsdp2", False), ("tp2", True)], ids=str
)
def test_texts_on_ranks_are_those_of_one_process(loaded, layout, apart, monkeypatch) -> None:
    """At 1, 4 and 16 at once, with clients that vanish, and after a pause; under tp in float64.

    apart: as if the model's caches had no slots.
    """
    if apart:
        monkeypatch.setattr(lockstep, "refillable", lambda model: False)
    model = copy.deepcopy(loaded.model)
    model = model.double() if layout == "tp2" else model
    alone = Engine(model, loaded.tokenizer, CPU, slots=16).start()
    expected = answers(alone)
    alone.close()
    config = reading_config(loaded.config, layout)

    def work(rank: int) -> None:
        from forge.parallel.mesh import make_mesh
        from forge.parallel.ranks import Ranks
        from forge.training.models import load_on_ranks

        host: Any = torch.distributed.new_group()
        mesh = make_mesh(config.parallel, "cpu")
        ranks = Ranks(rank=rank, size=2, mesh=mesh, host=host)
        laid_out = load_on_ranks(loaded.path, config, ranks, CPU)
        if layout == "tp2":
            laid_out.model.double()
        for slots in SLOTS:
            lead = Lead(ranks.from_main)
            agree = ranks.copy_from_main
            how: Any = {"slots": slots, "lead": lead, "agree": agree}
            engine = Engine(laid_out.model, laid_out.tokenizer, CPU, **how)
            if rank:
                follow(
                    engine.model, slots, engine.length, engine.how, CPU, lambda: ranks.from_main(0)
                )
                continue
            engine.start()
            texts = answers(engine)
            assert texts == {place: text for place, text in expected.items() if place in texts}
            assert len(texts) == 16 - 2 * (slots == 1)
            engine._change = lead.idle  # a sign of life between two requests
            again = [(0, 0), (1, 0), (2, 0)]
            assert answers(engine, 3) == {place: expected[place] for place in again}
            engine.close()
            assert engine.error is None

    on_ranks(2, work)


@pytest.fixture(scope="module")
def command(talker: Path) -> Iterator[Any]:
    """Starts `forge.serve --parallel tp2`; returns the process and its address."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-m", "forge.serve", str(talker), "--parallel", "tp2"]
        both: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([*words, "--port", "0", *more], text=True, **both)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving talker at http://127.0.0.1:"), line
        return process, line.split()[3].rstrip(";")

    yield start
    for process in started:
        process.kill()


def post(address: str, **body: Any) -> Any:
    url = f"{address}/v1/completions"
    return httpx.post(url, json=body, timeout=120, trust_env=False).json()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes of the ranks, in their order."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(map(int, path.read_text().split()))


@pytest.mark.nightly
def test_the_command_on_ranks(command, loaded) -> None:
    """Sixteen at once, a client that vanishes, and an end by a signal without a message."""
    process, address = command("--slots", "4")
    how: Any = {"temperature": 0.9, "max_tokens": 24}
    texts = ["the ship" + " a" * number for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda n: post(address, prompt=texts[n], seed=n, **how), range(16)))
    options: Any = {"max_new_tokens": 24, "temperature": 0.9, "top_k": 0}
    for number, reply in enumerate(replies):
        expected = loaded.continuations([texts[number]], seed=number, **options)
        assert reply["choices"][0]["text"] == expected[0].text
    url, body = f"{address}/v1/completions", {"prompt": "the", "stream": True, "max_tokens": 120}
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as reply:
        next(reply.iter_lines())
    metrics = f"{address}/metrics"
    until(lambda: "forge_live_answers 0" in httpx.get(metrics, trust_env=False).text, 120)
    time.sleep(5)  # longer than between two signs of life
    again = post(address, prompt="the ship", seed=0, **how)
    assert again["choices"] == replies[0]["choices"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert process.stdout.read() == ""


@pytest.mark.nightly
def test_a_rank_that_dies_ends_the_server(command) -> None:
    process, address = command()
    assert post(address, prompt="the ship", max_tokens=2)["usage"]["completion_tokens"] >= 1
    os.kill(children(process)[1], signal.SIGKILL)
    assert process.wait(120) == 128 + signal.SIGKILL
    assert "rank 1 of 2" in process.stdout.read()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health", trust_env=False)
