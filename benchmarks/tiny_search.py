"""The search behind `model=tiny train=quick`: the lowest validation bits per byte in a fixed training time.

    python benchmarks/tiny_search.py --seconds 85 > benchmarks/results/tiny_search.md

All candidates are timed first, one after another on all cores, over a few steps each; the fastest counts, so that what else the
machine does counts little. Then each trains for as many steps as fit the budget, one core each, as many at a time as there are cores:
the loss after a given number of steps does not depend on the machine's load. The best is run again with two more seeds.
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

FIXED = [
    "model=tiny",
    "train=quick",
    "metrics.enable_console=false",
    "checkpoint.interval=1000000",
    "eval.sample_prompts=[]",
    "eval.steps=0",
]
BASE = (
    "train.batch_size=4 train.seq_len=256 optimizer.lr=3e-3 scheduler=linear scheduler.min_lr_ratio=0.0 scheduler.warmup_steps=40 "
    "model.qk_norm=true"
)
SHAPES = {
    "d128 L3": "model.dim=128 model.n_layers=3 model.n_heads=4",
    "d192 L3": "model.dim=192 model.n_layers=3 model.n_heads=6 optimizer.lr=2e-3",
    "d192 L2": "model.dim=192 model.n_layers=2 model.n_heads=6 optimizer.lr=2e-3",
    "d256 L2": "model.dim=256 model.n_layers=2 model.n_heads=8 optimizer.lr=1.5e-3",
    "d128 L4": "model.dim=128 model.n_layers=4 model.n_heads=4",
    "d96 L3": "model.dim=96 model.n_layers=3 model.n_heads=3 optimizer.lr=4e-3",
}
CHANGES = {
    "lr 1.5e-3": "optimizer.lr=1.5e-3",
    "lr 6e-3": "optimizer.lr=6e-3",
    "batch 8": "train.batch_size=8 optimizer.lr=4e-3",
    "seq 512": "train.seq_len=512 train.batch_size=2",
    "no QK-norm": "model.qk_norm=false",
    "untied": "model.tie_embeddings=false",
}
CENTRE = "d128 L3"


def candidates() -> list[tuple[str, str]]:
    """(name, overrides): the shapes, then one change at a time to the centre."""
    shapes = [(name, f"{BASE} {text}") for name, text in SHAPES.items()]
    return shapes + [(name, f"{BASE} {SHAPES[CENTRE]} {change}") for name, change in CHANGES.items()]


def train(overrides: str, *, steps: int, seed: int = 42, evaluate: bool = True) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Run forge.train in a fresh directory; returns final metrics and the logged rows."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "forge.train", *FIXED, *overrides.split(), f"seed={seed}", f"run.dir={folder}/run"]
        command += [f"train.max_steps={steps}", f"eval.enabled={str(evaluate).lower()}", "eval.interval=1000000"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        return json.loads(Path(folder, "run", "result.json").read_text())["metrics"], rows


def step_seconds(overrides: str) -> float:
    """Seconds of a step: the fastest of the logs."""
    _, rows = train(f"{overrides} metrics.log_interval=2", steps=24, evaluate=False)
    return min(row["step_seconds"] for row in rows if "step_seconds" in row)


def xz_bits_per_byte() -> float:
    """Bits per byte of `xz -9` on the text of the same validation split."""
    from functools import partial

    from forge import compose
    from forge.config.build import build
    from forge.data.corpus import Corpus
    from forge.data.split import split_corpus

    config = compose(FIXED)
    corpus: Corpus = partial(build, config.data)()
    split = split_corpus(corpus, config.data.val_fraction)
    text = "".join(piece.text for piece, is_val in split.pieces() if is_val).encode()
    return 8 * len(lzma.compress(text, preset=9)) / len(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=80.0, help="training time of each candidate")
    parser.add_argument("--only", default="", help="comma-separated names; default all")
    parser.add_argument("--extra", action="append", default=[], help="NAME:OVERRIDES, a further candidate")
    options = parser.parse_args()
    wanted = [(n, o) for n, o in candidates() if not options.only or n in options.only.split(",")]
    wanted += [tuple(text.split(":", 1)) for text in options.extra]
    print(f"`python {' '.join(sys.argv)}`, {os.cpu_count()} cores, {options.seconds:g} s of training each, seed 42.\n")
    print("| candidate | ms a step | steps | bits per byte | loss | overrides |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    best: tuple[float, str, str, int] | None = None
    timed = [(name, overrides, step_seconds(overrides)) for name, overrides in wanted]
    pool = ThreadPoolExecutor(os.cpu_count())
    runs = [pool.submit(train, f"{o} run.num_threads=1", steps=int(options.seconds / seconds)) for _, o, seconds in timed]
    for (name, overrides, seconds), run in zip(timed, runs, strict=True):
        steps, metrics = int(options.seconds / seconds), run.result()[0]
        bits = metrics["eval/bits_per_byte"]
        print(f"| {name} | {seconds * 1e3:.1f} | {steps} | {bits:.4f} | {metrics['eval/loss']:.4f} | `{overrides}` |", flush=True)
        if best is None or bits < best[0]:
            best = (bits, name, overrides, steps)
    assert best is not None
    again = [pool.submit(train, f"{best[2]} run.num_threads=1", steps=best[3], seed=seed) for seed in (1, 2)]
    bits = [best[0], *(run.result()[0]["eval/bits_per_byte"] for run in again)]
    spread = f"{statistics.mean(bits):.4f} (standard deviation {statistics.stdev(bits):.4f})"
    print(f"\nBest: {best[1]}, seeds 42, 1, 2: {', '.join(f'{b:.4f}' for b in bits)}; mean {spread}.")
    print(f"`xz -9` on the same validation text: {xz_bits_per_byte():.4f} bits per byte.")


if __name__ == "__main__":
    main()
