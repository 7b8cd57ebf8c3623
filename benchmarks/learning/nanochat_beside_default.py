"""experiment=nanochat_d4_cpu beside the default run: bits per byte at equal tokens and at equal
time, three seeds; and the search for the settings of the experiment.

    python benchmarks/learning/nanochat_beside_default.py speed
    python benchmarks/learning/nanochat_beside_default.py tune NAME ...
    python benchmarks/learning/nanochat_beside_default.py compare RATIO

speed: tokens a second of both. tune: rows of the search, all by default. RATIO: tokens a second of
the default run over those of the experiment, by `speed`.
Each prints a table of Markdown, for benchmarks/results/nanochat_beside_default.md. Runs go on one
core each, two at a time, so that numbers do not depend on what else the machine does; only `speed`
needs a quiet machine. Every number is of the whole validation split.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scipy import stats

FIXED = ("metrics.enable_console=false", "checkpoint=off", "eval.steps=0", "eval.sample_tokens=0")
FIXED += ("eval.enabled=true", "eval.interval=1000000")
NANOCHAT, DEFAULT = ("experiment=nanochat_d4_cpu",), ()
TUNED_TOKENS = 655_360
ROLES = {"head": 0.008, "embedding": 0.3, "value_embedding": 0.15}
"""Groups under AdamW, with nanochat's rates."""


def rates(factor: float) -> tuple[str, ...]:
    """The rates of all groups under AdamW times a factor."""
    return tuple(f"optimizer.groups.{role}.lr={rate * factor:g}" for role, rate in ROLES.items())


SEARCH: dict[str, tuple[str, ...]] = {
    "2,048 tokens a step": ("train.global_batch_tokens=2048",),
    "1,024 tokens a step": ("train.global_batch_tokens=1024",),
    "512 tokens a step": ("train.global_batch_tokens=512",),
    "rates of the dial": ("train.global_batch_tokens=1024", "scaling.scale_rates=true"),
    "matrices x 0.5": ("train.global_batch_tokens=1024", "optimizer.lr=0.01"),
    "AdamW x 0.3": ("train.global_batch_tokens=1024", *rates(0.3)),
    "AdamW x 0.1": ("train.global_batch_tokens=1024", *rates(0.1)),
    "decay 0": ("train.global_batch_tokens=1024", "optimizer.weight_decay=0"),
    "decay 1.89": ("train.global_batch_tokens=1024", "optimizer.weight_decay=1.89"),
}
"""One change at a time; nanochat's dial would decay by 1.89 at depth 4."""


def run(words: Sequence[str], *, threads: int = 1) -> dict:
    """Train once, in a temporary directory; its result.json."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "forge.train", *FIXED, *words, f"run.dir={folder}/run"]
        command.append(f"run.num_threads={threads}")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(Path(folder, "run", "result.json").read_text())


def bits(words: Sequence[str]) -> float:
    return run(words)["metrics"]["eval/bits_per_byte"]


def speed(rounds: int = 3) -> None:
    """Print tokens a second of both, in alternation on two threads."""
    rows: dict[str, list[float]] = {"nanochat_d4_cpu": [], "default": []}
    for _ in range(rounds):
        for name, words in zip(rows, (NANOCHAT, DEFAULT), strict=True):
            short = (*words, "train.max_tokens=131072", "eval.enabled=false")
            rows[name].append(run(short, threads=2)["metrics"]["tokens_per_second"])
    print("| run | tokens a second | lowest | highest |\n| --- | --- | --- | --- |")
    for name, values in rows.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"| {name} | {middle:,.0f} | {low:,.0f} | {high:,.0f} |")


def tune(names: Sequence[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = {
            name: pool.submit(
                bits, (*NANOCHAT, *SEARCH[name], f"train.max_tokens={TUNED_TOKENS}", "seed=1")
            )
            for name in names
        }
        print("| change | bits per byte | overrides |\n| --- | --- | --- |")
        for name, made in runs.items():
            print(f"| {name} | {made.result():.4f} | `{' '.join(SEARCH[name])}` |", flush=True)


def compare(ratio: float, tokens: int = 983_040, seeds: Sequence[int] = (1, 2, 3)) -> None:
    """Print both at `tokens`, and the default run at as many seconds, `ratio` times as many."""
    columns = {
        f"nanochat_d4_cpu, {tokens:,} tokens": (*NANOCHAT, f"train.max_tokens={tokens}"),
        f"default, {tokens:,} tokens": (*DEFAULT, f"train.max_tokens={tokens}"),
        f"default, equal time: {int(tokens * ratio):,} tokens": (
            *DEFAULT,
            f"train.max_tokens={int(tokens * ratio)}",
        ),
    }
    with ThreadPoolExecutor(2) as pool:
        runs = {
            name: [pool.submit(bits, (*words, f"seed={seed}")) for seed in seeds]
            for name, words in columns.items()
        }
        heads = " | ".join(f"seed {seed}" for seed in seeds)
        print(f"| run | {heads} | mean | 95 % interval |")
        print("| --- " * (len(seeds) + 3) + "|")
        for name, futures in runs.items():
            values = [made.result() for made in futures]
            mean, error = statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5
            half = float(stats.t.ppf(0.975, len(values) - 1)) * error
            each = " | ".join(f"{value:.4f}" for value in values)
            print(
                f"| {name} | {each} | {mean:.4f} | {mean - half:.4f} to {mean + half:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "speed":
        speed()
    elif verb == "tune":
        tune(rest or list(SEARCH))
    else:
        compare(float(rest[0]))
