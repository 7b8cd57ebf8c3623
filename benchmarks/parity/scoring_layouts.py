"""How far the scores and texts of evaluation on every layout are from those of one device.

    python benchmarks/parity/scoring_layouts.py > benchmarks/results/scoring_layouts.md

As tests/parallel/test_scoring.py and test_generated_layouts.py measure it. Exits with 1 where a
score is outside of its bound, or a text is another one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "parallel")]

import torch  # noqa: E402
from parity_run import config_of, main_ranks  # noqa: E402  # pyright: ignore[reportMissingImports]
from test_generated_layouts import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    prompts,
    texts_on,
)
from test_scoring import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    alone,
    scores_on,
    some_requests,
)

from forge.parallel.ranks import Ranks  # noqa: E402
from forge.training.models import build_model  # noqa: E402

CPU = torch.device("cpu")
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-6}
TOKENS = {"one by one": 1, "small": 64, "whole": 4096}
"""Tokens that a rank reads at once, by name."""
LAYOUTS = (
    "",
    "parallel.dp_shard=2",
    "parallel.dp_replicate=2",
    "parallel.tp=2",
    "parallel.cp=2",
    "parallel.pp=2",
    "parallel.dp_shard=2 parallel.tp=2",
    "parallel.dp_shard=2 parallel.cp=2",
    "parallel.dp_shard=2 parallel.pp=2",
)


def expected(dtype: torch.dtype) -> list[float]:
    """The definition: each text read whole and alone, by a model on one device."""
    model = build_model(config_of("llama"), CPU, Ranks(), dtype).eval()
    return [alone(model, each)[0] for each in some_requests(24)]


def difference(layout: str, dtype: torch.dtype, tokens: int, right: list[float]) -> float:
    """The largest relative difference of a log-probability."""
    config = config_of("llama", layout)

    def on_rank(ranks: Ranks) -> list[list[float]]:
        return [list(score) for score in scores_on(config, ranks, dtype, tokens)]

    found = main_ranks(config, on_rank) if layout else on_rank(Ranks())
    pairs = zip(found, right, strict=True)
    return max(abs(score[0] - value) / max(abs(value), 1) for score, value in pairs)


def texts_equal(layout: str, right: list[str]) -> bool:
    config = config_of("llama", layout)
    on_rank = main_ranks(config, lambda ranks: texts_on(config, ranks)) if layout else right
    return on_rank == right


def main() -> int:
    """Print the page."""
    definition = {dtype: expected(dtype) for dtype in BOUNDS}
    right = texts_on(config_of("llama"), Ranks())
    print("# Scores and texts of evaluation on every layout\n")
    print(
        f"`python benchmarks/parity/scoring_layouts.py`, torch {torch.__version__}, gloo ranks on"
    )
    print("a CPU. The tests are tests/parallel/test_scoring.py and test_generated_layouts.py.\n")
    print(
        f"{len(definition[torch.float64])} requests, from 2 tokens to as many as the model reads,"
    )
    print("equal ones, choices after one question, and questions after the same examples. Of each")
    print("layout and number of tokens read at once the largest relative difference of a")
    print("log-probability from a plain forward pass of that text alone, on one device (bounds")
    print(f"1e-12 in float64 and 1e-06 in float32); and whether {len(prompts())} texts, greedy and")
    print("sampled, of prompts of four lengths, are those of one device.\n")
    heads = [f"{name}, {bits}" for bits in ("float64", "float32") for name in TOKENS]
    print("| layout | " + " | ".join(heads) + " | texts equal |")
    print("| --- |" + " ---: |" * len(heads) + " --- |")
    failed = False
    for layout in LAYOUTS:
        cells = []
        for dtype, bound in BOUNDS.items():
            for tokens in TOKENS.values():
                value = difference(layout, dtype, tokens, definition[dtype])
                failed |= not value <= bound
                cells.append(f"{value:.0e}")
        equal = texts_equal(layout, right)
        failed |= not equal
        name = f"`{layout}`" if layout else "one device"
        print(f"| {name} | {' | '.join(cells)} | {'yes' if equal else '**no**'} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
