"""The search behind `model=tiny train=quick`: the lowest validation bits per byte for a fixed
amount of arithmetic.

    python benchmarks/learning/tiny_search.py --tflops 12 > benchmarks/results/tiny_search.md

Every candidate trains for as many steps as the same number of FLOPs allow, by
`Decoder.flops_per_token`. So what else the machine does changes nothing in the table, and
candidates run side by side, a core each. 12 TFLOP are about what two cores do in 85 seconds (140
GFLOP/s). The best candidate is run again with two more seeds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import forge
from forge.build import build
from forge.config.model.decoder import Decoder
from forge.data.text.corpus import Corpus
from forge.data.text.split import split_corpus

FIXED = [
    "model=tiny",
    "train=quick",
    "metrics.enable_console=false",
    "checkpoint.interval=1000000",
    "eval.sample_tokens=0",
    "eval.steps=0",
]
BASE = (
    "train.batch_size=4 train.seq_len=256 optimizer=adamw optimizer.lr=3e-3 scheduler=linear"
    " scheduler.min_lr_ratio=0.0 scheduler.warmup_steps=40 model.qk_norm=true"
)
SHAPES = {
    "d128 L3": "model.dim=128 model.n_layers=3 model.n_heads=4",
    "d192 L2": "model.dim=192 model.n_layers=2 model.n_heads=6 optimizer.lr=2e-3",
    "d192 L3": "model.dim=192 model.n_layers=3 model.n_heads=6 optimizer.lr=2e-3",
    "d128 L2": "model.dim=128 model.n_layers=2 model.n_heads=4",
    "d160 L2": "model.dim=160 model.n_layers=2 model.n_heads=5",
    "d96 L2": "model.dim=96 model.n_layers=2 model.n_heads=3",
}
CHANGES = {
    "lr 1.5e-3": "optimizer.lr=1.5e-3",
    "batch 8": "train.batch_size=8",
    "beta2 0.99": "optimizer.betas=[0.9,0.99]",
    "no QK-norm": "model.qk_norm=false",
}
CENTRE = "d128 L2"


def candidates() -> list[tuple[str, str]]:
    """(name, overrides): the shapes, then one change at a time to the centre."""
    shapes = [(name, f"{BASE} {text}") for name, text in SHAPES.items()]
    return shapes + [
        (name, f"{BASE} {SHAPES[CENTRE]} {change}") for name, change in CHANGES.items()
    ]


def train(overrides: str, *, steps: int, seed: int = 42) -> dict[str, float]:
    """Run forge.train on one core in a fresh directory; returns the final metrics."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "forge.train",
            *FIXED,
            *overrides.split(),
            f"seed={seed}",
            f"run.dir={folder}/run",
        ]
        command += [
            f"train.max_steps={steps}",
            "eval.enabled=true",
            "eval.interval=1000000",
            "run.num_threads=1",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(folder, "run", "result.json").read_text())["metrics"]


def steps_for(overrides: str, flops: float) -> int:
    """How many steps of a candidate the arithmetic allows."""
    config = forge.compose([*FIXED, *overrides.split()])
    assert isinstance(config.model, Decoder)
    tokens = config.train.batch_size * config.train.seq_len
    return int(flops / (tokens * config.model.flops_per_token(config.train.seq_len)))


def xz_bits_per_byte() -> float:
    """Bits per byte of `xz -9` on the text of the same validation split."""
    config = forge.compose(FIXED)
    corpus: Corpus = build(config.data, path="data")
    split = split_corpus(corpus, config.data.held_out)
    text = "".join(piece.text for piece, is_val in split.pieces() if is_val).encode()
    return 8 * len(lzma.compress(text, preset=9)) / len(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--tflops", type=float, default=12.0, help="training arithmetic of each candidate"
    )
    parser.add_argument("--only", help="names of candidates, separated by commas; default all")
    options = parser.parse_args()
    chosen = [c for c in candidates() if options.only is None or c[0] in options.only.split(",")]
    print(
        f"`python {' '.join(sys.argv)}`: {options.tflops:g} TFLOP each, seed 42, torch"
        f" {torch.__version__}.\n"
    )
    print(
        "| candidate | steps | bits per byte | loss | overrides |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    planned = [
        (name, overrides, steps_for(overrides, options.tflops * 1e12)) for name, overrides in chosen
    ]
    pool = ThreadPoolExecutor(os.cpu_count())
    runs = [pool.submit(train, overrides, steps=steps) for _, overrides, steps in planned]
    best: tuple[float, str, str, int] | None = None
    for (name, overrides, steps), run in zip(planned, runs, strict=True):
        metrics = run.result()
        bits = metrics["eval/bits_per_byte"]
        print(
            f"| {name} | {steps} | {bits:.4f} | {metrics['eval/loss']:.4f} | `{overrides}` |",
            flush=True,
        )
        if best is None or bits < best[0]:
            best = (bits, name, overrides, steps)
    assert best is not None
    again = [pool.submit(train, best[2], steps=best[3], seed=seed) for seed in (1, 2)]
    bits = [best[0], *(run.result()["eval/bits_per_byte"] for run in again)]
    spread = f"{statistics.mean(bits):.4f} (standard deviation {statistics.stdev(bits):.4f})"
    print(
        f"\nBest: {best[1]}, seeds 42, 1, 2: {', '.join(f'{b:.4f}' for b in bits)}; mean {spread}."
    )
    print(f"`xz -9` on the same validation text: {xz_bits_per_byte():.4f} bits per byte.")


if __name__ == "__main__":
    main()
