"""Tokens a second of generation beside `transformers.generate`, on one folder, in one process.

    python benchmarks/beside_others/generation_peers.py > benchmarks/results/generation_peers.md
    python benchmarks/beside_others/generation_peers.py --folder my/model --batch 1 16 --device cuda

Without a folder it makes one of random weights in the shape of SmolLM2-135M, which are as fast as
trained ones. Both programs read the same prompts and write `--tokens` tokens for each, in turn,
`--times` times, after one short turn each that nobody measures. Greedy texts are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

import forge
from forge.config.tokenizers.tokenizer import END_OF_TEXT
from forge.data.tokenizers.byte_text import ByteText
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.token_distribution import Sampling

SMOLLM2: dict[str, Any] = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536}
SMOLLM2 |= {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
SMOLLM2 |= {"max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100000.0}
WAYS = {"greedy": {"temperature": 0.0}, "top-k 50": {"temperature": 0.8, "top_k": 50}}
ABOUT = """`rows` prompts, all of {prompt} tokens or of {least} to {prompt}, to each of which
{tokens} tokens are added, whatever they are; the median of {times} runs, forge and transformers in
turn. Tokens a second: added tokens of all rows by the seconds of the whole call, with the reading
of the prompts. CPU: seconds of the processor that transformers took, by those of forge, which other
programs on the machine change less. No draw ends a row."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, help="of a model; null = one of random weights")
    add("--device", default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--threads", type=int, default=2)
    add("--batch", type=int, nargs="+", default=[1, 16])
    add("--prompt", type=int, default=64, help="tokens of the longest prompt")
    add("--tokens", type=int, default=64)
    add("--times", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        _compare(options, Path(scratch))


def models_of(
    options: argparse.Namespace, scratch: Path, make: Callable[[Path], Path], title: str
) -> tuple[Any, Any, torch.device]:
    """The model of a folder by forge and by transformers, and their device, under a heading that
    says what they are. make: a folder of random weights, without --folder.
    """
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    folder = options.folder or make(scratch / "folder")
    with contextlib.redirect_stdout(io.StringIO()):
        failed = import_module("forge.import").main([str(folder), str(scratch / "run")])
    if failed:
        sys.exit(failed)
    ours = forge.load(scratch / "run", device=options.device).model.to(dtype)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    theirs = theirs.to(device)
    torch.set_num_threads(options.threads)  # which loading a run sets
    size = sum(parameter.numel() for parameter in theirs.parameters()) / 1e6
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    threads = "" if device.type == "cuda" else f", {options.threads} threads"
    script = f"benchmarks/beside_others/{Path(sys.argv[0]).name}"
    print(f"# Tokens a second of {title}, forge and transformers\n")
    command = " ".join(["python", script, *sys.argv[1:]])
    print(f"`{command}`, torch {torch.__version__}, transformers {transformers.__version__},")
    print(f"{where}{threads}; {size:.1f}M parameters, {options.dtype}.\n")
    return ours, theirs, device


def _compare(options: argparse.Namespace, scratch: Path) -> None:
    ours, theirs, device = models_of(options, scratch, made, "generation")
    shown = {"prompt": options.prompt, "least": options.prompt // 2}
    print(ABOUT.format(tokens=options.tokens, times=options.times, **shown))
    print("\n| rows | prompts | drawn | forge, tokens/s | transformers | ratio | CPU | same text |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    vocab = theirs.config.vocab_size
    for rows in options.batch:
        for kind in ("equal", "ragged") if rows > 1 else ("equal",):
            least = options.prompt if kind == "equal" else options.prompt // 2
            prompts = prompts_of(rows, least, options.prompt, vocab)
            for name, way in WAYS.items():
                both = {
                    "forge": lambda n, p=prompts, w=way: forge_writes(ours, p, n, w, device),
                    "transformers": lambda n, p=prompts, w=way: peer_writes(
                        theirs, p, n, w, device
                    ),
                }
                speeds, used, texts = measured(both, rows, options.tokens, options.times)
                said = "yes" if texts["forge"] == texts["transformers"] else "no"
                said = said if name == "greedy" else ""
                one, other = (speeds[each] for each in ("forge", "transformers"))
                columns = f"{one:,.1f} | {other:,.1f} | {one / other:.2f} | {used:.2f} | {said}"
                print(f"| {rows} | {kind} | {name} | {columns} |", flush=True)


def made(folder: Path) -> Path:
    """A folder of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(**SMOLLM2, bos_token_id=None, eos_token_id=256, initializer_range=0.06)
    LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(ByteText(END_OF_TEXT), eos_token=END_OF_TEXT).save(folder)
    return folder


def prompts_of(rows: int, least: int, most: int, vocab: int) -> list[list[int]]:
    """Of lengths from `least` to `most`."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.linspace(least, most, max(rows, 2))[-rows:].round().int().tolist()
    return [torch.randint(vocab, (length,), generator=draw).tolist() for length in lengths]


def measured(
    both: dict[str, Callable[[int], list[list[int]]]], rows: int, tokens: int, times: int
) -> tuple[dict[str, float], float, dict[str, list[list[int]]]]:
    """Tokens a second of each, the ratio of their CPU seconds, and what each wrote."""
    for write in both.values():
        write(2)
    seconds: dict[str, list[float]] = {name: [] for name in both}
    used: dict[str, list[float]] = {name: [] for name in both}
    texts = {}
    for turn in range(times):
        for name in list(both)[:: 1 if turn % 2 == 0 else -1]:
            begun, processor = time.perf_counter(), time.process_time()
            texts[name] = both[name](tokens)
            seconds[name].append(time.perf_counter() - begun)
            used[name].append(time.process_time() - processor)
            assert all(len(row) == tokens for row in texts[name])
    speeds = {name: rows * tokens / median(found) for name, found in seconds.items()}
    return speeds, median(used["transformers"]) / median(used["forge"]), texts


def forge_writes(
    model: Any, prompts: list[list[int]], tokens: int, way: dict[str, Any], device: torch.device
) -> list[list[int]]:
    """By the loop of forge.generate."""
    return continue_rows(
        model, prompts, tokens, DrawOptions(sampling=Sampling(**way)), device
    ).tokens


@torch.no_grad()
def peer_writes(
    model: Any, prompts: list[list[int]], tokens: int, way: dict[str, Any], device: torch.device
) -> list[list[int]]:
    """By `generate`, of prompts that are padded on the left."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    settings: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    settings |= {"pad_token_id": 0, "eos_token_id": None, "do_sample": way["temperature"] > 0}
    if way["temperature"] > 0:
        settings |= way
    text = model.generate(
        torch.tensor(ids, device=device),
        attention_mask=torch.tensor(mask, device=device),
        generation_config=GenerationConfig(**settings),
    )
    return text[:, longest:].tolist()


if __name__ == "__main__":
    main()
