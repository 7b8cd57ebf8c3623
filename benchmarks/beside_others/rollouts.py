"""Tokens a second of rollouts beside a loop of `transformers.generate`, on one folder.

    python benchmarks/beside_others/rollouts.py > benchmarks/results/rollouts.md
    python benchmarks/beside_others/rollouts.py --folder my/model --device cuda --dtype bfloat16

Without a folder it makes one of random weights. Both programs write the same completions, `--rows`
at a time, in turn, `--times` times, after a short turn each that nobody measures. A completion ends
at one of some hundred ending tokens, or after `--tokens` tokens.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from generation_peers import models_of
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from forge.config.tokenizers.tokenizer import END_OF_TEXT
from forge.data.tokenizers.byte_text import ByteText
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.batching.slots import Slots
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling
from forge.rollouts.slots import write_rows

ABOUT = """{prompts} prompts of {prompt} tokens, {group} completions of each, temperature 1, {rows}
rows at a time: forge in slots that are refilled, transformers in batches, each of which ends with
its longest row. The median of {times} runs, in turn. Tokens: of completions, up to their ends, the
ending token too; forge gives the log-probability of each besides. CPU: seconds of the processor
that transformers took for a token, by those of forge, which other programs on the machine change
less. `ends`: {ends} of {vocab:,} tokens end a completion. `full`: none does."""
PARTS = {
    "model": (Slots, "_hidden"),
    "draws": (Slots, "_draw"),
    "prompts": (Slots, "reading"),
    "cache": (Slots, "_copy"),
    "moves": (Slots, "_replace"),
    "results": (Slots, "_take"),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, help="of a model; null = one of random weights")
    add("--device", default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--threads", type=int, default=2)
    add("--rows", type=int, default=16)
    add("--prompts", type=int, default=8)
    add("--group", type=int, default=8)
    add("--prompt", type=int, default=64, help="tokens of a prompt")
    add("--tokens", type=int, default=128)
    add("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        _compare(options, Path(scratch))


def _compare(options: argparse.Namespace, scratch: Path) -> None:
    ours, theirs, device = models_of(options, scratch, made, "rollouts")
    vocab = theirs.config.vocab_size
    ending = list(range(0, vocab, 64))
    print(ABOUT.format(**vars(options), ends=len(ending), vocab=vocab))
    print("\n| completions | mean length | forge, tokens/s | transformers | ratio | CPU |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    prompts = prompts_of(options.prompts, options.prompt, vocab)
    texts = [prompt for prompt in prompts for _ in range(options.group)]
    write: dict[str, Any] = {
        "forge": functools.partial(forge_writes, ours, texts, options.rows, device),
        "transformers": functools.partial(peer_writes, theirs, texts, options.rows, device),
    }
    for name, ends in (("ends", ending), ("full", [])):
        speeds, length, used = measured(write, options.tokens, ends, options.times)
        ratio = speeds["forge"] / speeds["transformers"]
        columns = f"{speeds['forge']:,.0f} | {speeds['transformers']:,.0f} | {ratio:.2f}"
        print(f"| {name} | {length:.0f} | {columns} | {used:.2f} |", flush=True)
    print("\nWhere the time of forge goes, of completions with ends:\n")
    print("| part | share |\n| --- | ---: |")
    for name, share in shares_of(lambda: write["forge"](options.tokens, ending)).items():
        print(f"| {name} | {share:.1%} |")


def made(folder: Path) -> Path:
    """A folder of random weights."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8192}
    config = LlamaConfig(**shape, max_position_embeddings=1024, bos_token_id=None, eos_token_id=256)
    LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(ByteText(END_OF_TEXT), eos_token=END_OF_TEXT).save(folder)
    return folder


def prompts_of(count: int, length: int, vocab: int) -> list[tuple[int, ...]]:
    draw = torch.Generator().manual_seed(0)
    return [tuple(torch.randint(vocab, (length,), generator=draw).tolist()) for _ in range(count)]


Write = Callable[[int, list[int]], list[int]]


def measured(
    write: dict[str, Write], tokens: int, ends: list[int], times: int
) -> tuple[dict[str, float], float, float]:
    """Tokens a second of each, the mean length of all completions, and the ratio of CPU seconds a
    token.
    """
    for each in write.values():
        each(4, ends)
    speeds: dict[str, list[float]] = {name: [] for name in write}
    used: dict[str, list[float]] = {name: [] for name in write}
    lengths: list[int] = []
    for turn in range(times):
        for name in list(write)[:: 1 if turn % 2 == 0 else -1]:
            begun, processor = time.perf_counter(), time.process_time()
            written = write[name](tokens, ends)
            speeds[name].append(sum(written) / (time.perf_counter() - begun))
            used[name].append((time.process_time() - processor) / sum(written))
            lengths += written
    ratio = median(used["transformers"]) / median(used["forge"])
    medians = {name: median(values) for name, values in speeds.items()}
    return medians, sum(lengths) / len(lengths), ratio


def forge_writes(
    model: Any,
    texts: list[tuple[int, ...]],
    rows: int,
    device: torch.device,
    tokens: int,
    ends: list[int],
) -> list[int]:
    """The lengths of completions by the sampler of rollouts."""
    how = DrawOptions(sampling=Sampling(seed=1), ends=frozenset(ends), logprobs=True)
    drawn = write_rows(model, texts, range(len(texts)), tokens, how, device, size=rows)
    return [len(row) for row in drawn.tokens]


@torch.no_grad()
def peer_writes(
    model: Any,
    texts: list[tuple[int, ...]],
    rows: int,
    device: torch.device,
    tokens: int,
    ends: list[int],
) -> list[int]:
    """The lengths of completions by `generate`, batch after batch."""
    settings: dict[str, Any] = {"max_new_tokens": tokens, "do_sample": True, "temperature": 1.0}
    settings |= {"top_k": 0, "top_p": 1.0, "pad_token_id": 1, "eos_token_id": ends or None}
    lengths = []
    for first in range(0, len(texts), rows):
        batch = torch.tensor(texts[first : first + rows], device=device)
        text = model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            generation_config=GenerationConfig(**settings),
        )
        for row in text[:, batch.shape[1] :].tolist():
            end = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
            lengths.append(end + 1)
    return lengths


def shares_of(write: Callable[[], object]) -> dict[str, float]:
    """The share of each part in the seconds of a call."""
    seconds = dict.fromkeys(PARTS, 0.0)
    originals = {name: getattr(owner, method) for name, (owner, method) in PARTS.items()}

    def timed(name: str) -> Any:
        original = originals[name]

        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = original(*arguments)
            if name == "prompts":
                result = finished(result)
            seconds[name] += time.perf_counter() - begun
            return result

        return call

    for name, (owner, method) in PARTS.items():
        setattr(owner, method, timed(name))
    begun = time.perf_counter()
    try:
        write()
    finally:
        for name, (owner, method) in PARTS.items():
            setattr(owner, method, originals[name])
    total = time.perf_counter() - begun
    seconds["results"] -= seconds["moves"]  # ended rows leave while results are taken
    rest = {"rest": total - sum(seconds.values())}
    return {name: value / total for name, value in (seconds | rest).items()}


def finished(parts: Iterator[None]) -> Iterator[None]:
    return iter(list(parts))


if __name__ == "__main__":
    main()
