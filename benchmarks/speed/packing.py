"""How fast data.packing=best_fit_crop plans its rows, and what they crop off, by its buffer.

python benchmarks/speed/packing.py > benchmarks/results/packing.md
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from forge.data.batches.buffered_fit import BufferedFit
from forge.data.batches.plans import kept_plan
from forge.data.tokens.shards import IndexedStore, ShardWriter

AT_ONCE = 20_000  # documents; a block of 16 million tokens has about as many
SEQ_LEN, MEAN_LOG, SPREAD = 2048, 6.3, 1.0


def lengths(number: int) -> np.ndarray:
    """Tokens of documents like those of web pages: log-normal, half of them below 545."""
    drawn = np.random.default_rng(0).lognormal(MEAN_LOG, SPREAD, number)
    return np.clip(drawn, 2, 100_000).astype(np.int64)


def planned(stops: np.ndarray, size: int) -> BufferedFit:
    """Plan the rows of documents that stand one after the other."""
    starts = np.append(0, stops[:-1])
    fit = BufferedFit(room=SEQ_LEN + 1, size=size, crop=True)
    for first in range(0, len(stops), AT_ONCE):
        fit.add(starts[first : first + AT_ONCE], stops[first : first + AT_ONCE])
        fit.rows()
    fit.finish()
    fit.rows()
    return fit


def scanned(sizes: list[int], size: int) -> None:
    """Plan the same rows by scanning the buffer for each document, as nanochat's loader does."""
    buffer: list[int] = []
    free, coming = SEQ_LEN + 1, iter(sizes)
    while True:
        while len(buffer) < size and (length := next(coming, 0)):
            buffer.append(length)
        if not buffer:
            return
        best, longest = -1, 0
        for place, length in enumerate(buffer):
            if longest < length <= free:
                best, longest = place, length
        if best < 0:
            best = min(range(len(buffer)), key=buffer.__getitem__)
        free -= min(buffer.pop(best), free)
        free = free or SEQ_LEN + 1


def whole(sizes: np.ndarray) -> tuple[float, float]:
    """(seconds of a plan in the cache, MiB of Python's memory at most) over a store of tokens."""
    with tempfile.TemporaryDirectory() as folder:
        writer = ShardWriter(Path(folder, "store"), dtype="<u2")
        tokens = np.ones(int(sizes.sum()), "<u2")
        tokens[np.cumsum(sizes) - sizes] = 0
        writer.append(tokens)
        writer.close(n_bytes=0, n_documents=len(sizes))
        del tokens
        how: dict[str, Any] = {
            "end_of_text": 0,
            "begin_of_text": 0,
            "seq_len": SEQ_LEN,
            "max_segments": 0,
        }
        how |= {"policy": "best_fit_crop", "too_long": "split", "buffer": 1000}
        store = IndexedStore(Path(folder, "store"))
        begin = time.perf_counter()
        kept_plan(Path(folder, "timed"), store, **how)
        seconds = time.perf_counter() - begin
        tracemalloc.start()
        kept_plan(Path(folder, "traced"), store, **how)
        return seconds, tracemalloc.get_traced_memory()[1] / 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1_000_000)
    options = parser.parse_args()
    sizes = lengths(options.documents)
    stops = np.cumsum(sizes)
    versions = f"numpy {np.__version__}, Python {platform.python_version()}"
    print(f"`python {' '.join(sys.argv)}`, {versions}, one core: rows of {SEQ_LEN:,} + 1 tokens of")
    print(f"{len(sizes):,} documents of {sizes.mean():,.0f} tokens on average.\n")
    print("| buffer | documents a second | 10 million documents | cropped off |")
    print("| --- | --- | --- | --- |")
    for size in (1, 100, 1000, 10_000):
        begin = time.perf_counter()
        fit = planned(stops, size)
        rate = len(sizes) / (time.perf_counter() - begin)
        share = fit.cropped / sizes.sum()
        print(f"| {size:,} | {rate:,.0f} | {1e7 / rate:,.0f} s | {share:.1%} |")
    few = sizes[: len(sizes) // 50]
    begin = time.perf_counter()
    scanned(few.tolist(), 1000)
    rate = len(few) / (time.perf_counter() - begin)
    seconds, memory = whole(sizes[: len(sizes) // 10])
    print(f"\nA scan of 1,000 documents for each fit plans {rate:,.0f} documents a second.")
    print(
        f"With the tokens read from disk and the plan written, {len(sizes) // 10:,} documents take"
    )
    print(f"{seconds:.1f} s; Python and numpy hold {memory:,.0f} MiB at most, as much as a block.")
    print(f"\nLoad of the machine in the last five minutes: {os.getloadavg()[1]:.1f}.")


if __name__ == "__main__":
    main()
