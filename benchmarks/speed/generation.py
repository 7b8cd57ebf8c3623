"""Tokens a second of generation: 1, 8 and 32 prompts, with a cache and without.

    python benchmarks/speed/generation.py > benchmarks/results/generation.md

On random weights of model=small, which are as fast as trained ones. Prompts have 32 to 96 tokens,
64 in the mean; each is continued by `--tokens`.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from itertools import product
from typing import Any

import torch

import forge
from forge.models.init import init_weights
from forge.models.plain import make_model
from forge.models.sampling import Continued, DrawOptions, continue_rows
from forge.models.token_distribution import Sampling

BATCHES = (1, 8, 32)
ABOUT = """Of each prompt {tokens} tokens are drawn, with temperature 0.8 and top-k 50; the best of
{times} times. Prefill: tokens of the prompts, until each row has its first token. Decode: the other
tokens of all rows. Kept: bytes of keys and values in the cache."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--device", default="cpu")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--threads", type=int, default=2)
    add("--tokens", type=int, default=32)
    add("--times", type=int, default=2)
    add("overrides", nargs="*", default=["model=small"], help="of the model")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    model = model_of(options.overrides, device, getattr(torch, options.dtype))
    words = [word for word in sys.argv[1:] if word]
    command = " ".join(["python", "benchmarks/speed/generation.py", *words])
    where = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    threads = "" if device.type == "cuda" else f", {options.threads} threads"
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"# Tokens a second of generation\n\n`{command}`, torch {torch.__version__}, {where}")
    print(f"{threads.removeprefix(', ') or 'one GPU'}; {size:.1f}M parameters, {options.dtype}.\n")
    print(ABOUT.format(tokens=options.tokens, times=options.times))
    print("\n| prompts | cache | prefill, tokens/s | decode, tokens/s | seconds | kept, MB |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for rows, cached in product(BATCHES, (True, False)):
        found = [measure(model, rows, options.tokens, cached, device) for _ in range(options.times)]
        seconds, made, kept = min(found, key=lambda one: one[0])
        decoded = sum(map(len, made.tokens)) - rows
        speeds = f"{made.read / made.reading:,.0f} | {decoded / made.writing:,.0f}"
        held = f"{kept / 1e6:.1f}" if cached else ""
        name = "yes" if cached else "no"
        print(f"| {rows} | {name} | {speeds} | {seconds:.2f} | {held} |", flush=True)


def model_of(overrides: list[str], device: torch.device, dtype: torch.dtype) -> Any:
    """With random weights."""
    words = ["model.vocab_size=32000", *overrides]
    section = forge.compose(words).validate().config.model
    with torch.device("meta"):
        model = make_model(section)
    model.to_empty(device=device)
    init_weights(model, 0)
    return model.to(dtype).eval()


def measure(
    model: Any, rows: int, tokens: int, cached: bool, device: torch.device
) -> tuple[float, Continued, int]:
    """Seconds, what was drawn, and bytes of the cache."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.linspace(32, 96, rows + 2)[1:-1].round().int().tolist()
    prompts = [torch.randint(32000, (length,), generator=draw).tolist() for length in lengths]
    how = DrawOptions(sampling=Sampling(temperature=0.8, top_k=50), use_cache=cached)
    caches = []
    make = type(model).new_cache

    def kept(self: Any, *sizes: Any) -> Any:
        caches.append(make(self, *sizes))
        return caches[-1]

    model.new_cache = kept.__get__(model)
    begun = time.perf_counter()
    made = continue_rows(model, prompts, tokens, how, device)
    seconds = time.perf_counter() - begun
    layers = [layer for cache in caches for layer in cache.layers]
    held = [each for layer in layers for each in layer.held]
    return seconds, made, sum(each.numel() * each.element_size() for each in held)


if __name__ == "__main__":
    main()
