"""forge's loader against a plain DataLoader over a memory map of the same tokens: tokens a second,
how long a step of 20 ms waits for its batch, and the first batch, of a corpus and of one eight
times as large.

    python benchmarks/speed/data.py > benchmarks/results/data.md

The plain one is what a short training script has: windows of a np.memmap by number, the sampler of
shuffle=True, the default collation. forge's maps the same file, and each batch says how many of its
targets count. Every row is a process of its own, and the ways take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from forge.config.objectives.base import Pretrain as Section
from forge.data.batches.loader import TrainLoader
from forge.data.tokens.shards import IndexedStore, ShardWriter
from forge.data.tokens.tokens import RandomStore
from forge.objectives.pretrain import Pretrain

SEQ, BATCH, STEP_SECONDS = 1024, 16, 0.02
TOKENS = 32 << 20
DRAINED, PACED, TIMES = 400, 100, 3


class Windows(Dataset):
    def __init__(self, file: Path) -> None:
        self.tokens = np.memmap(file, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // SEQ

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        window = self.tokens[number * SEQ : (number + 1) * SEQ + 1].astype(np.int64)
        return torch.from_numpy(window[:-1]), torch.from_numpy(window[1:])


def batches(way: str, folder: Path, workers: int) -> Iterator[Tensor]:
    """Tokens, [BATCH, SEQ] each, in a random order."""
    if way == "plain":
        options: Any = {"num_workers": workers, "shuffle": True, "drop_last": True}
        while True:
            yield from (x for x, _ in DataLoader(Windows(folder / "00000.bin"), BATCH, **options))
    text, objective = IndexedStore(folder), Pretrain(Section(_target_=""))
    text.verify()
    loader = TrainLoader(
        text, objective, seq_len=SEQ, seed=0, batch_size=BATCH, num_workers=workers
    )
    yield from (step.batches[0]["tokens"] for step in loader)


def measure(way: str, folder: Path, workers: int) -> dict[str, float]:
    begin = time.perf_counter()
    stream = batches(way, folder, workers)
    assert next(stream).shape == (BATCH, SEQ)
    found = {"first": time.perf_counter() - begin}
    begin = time.perf_counter()
    for _ in range(DRAINED):
        next(stream)
    found["rate"] = DRAINED * BATCH * SEQ / (time.perf_counter() - begin)
    waits = []
    for _ in range(PACED):
        time.sleep(STEP_SECONDS)
        begin = time.perf_counter()
        next(stream)
        waits.append(time.perf_counter() - begin)
    found["wait"] = statistics.median(waits)
    return found


def write(folder: Path, tokens: int) -> None:
    random = RandomStore(tokens, n_ids=1 << 15, seed=0)
    writer = ShardWriter(folder, vocab_size=1 << 15, shard_tokens=tokens)
    for start in range(0, tokens, 1 << 20):
        writer.append(random.read(start, min(start + (1 << 20), tokens)))
    writer.close(n_bytes=0, n_documents=0)


def main() -> None:
    if len(sys.argv) > 1:
        way, folder, workers = sys.argv[1:]
        print(json.dumps(measure(way, Path(folder), int(workers))), flush=True)
        os._exit(0)
    print(
        f"`python benchmarks/speed/data.py`, torch {torch.__version__}, {os.cpu_count()} cores;"
        " batches"
    )
    print(f"of {BATCH} x {SEQ} tokens; medians of {TIMES} processes each.\n")
    print("| loader | corpus | loader processes | tokens a second | a step waits | first batch |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place:
        for times in (1, 8):
            folder = Path(place, str(times))
            write(folder, times * TOKENS)
            for workers in (0, 2):
                found: dict[str, list[dict[str, float]]] = {"plain": [], "forge": []}
                for _ in range(TIMES):
                    for way, rows in found.items():
                        command = [sys.executable, __file__, way, str(folder), str(workers)]
                        done = subprocess.run(command, check=True, capture_output=True, text=True)
                        rows.append(json.loads(done.stdout))
                for way, rows in found.items():
                    row = {name: statistics.median(one[name] for one in rows) for name in rows[0]}
                    print(
                        f"| {way} | {times * TOKENS / 1e6:.0f} M tokens | {workers} "
                        f"| {row['rate'] / 1e6:.1f} M | {1e3 * row['wait']:.2f} ms "
                        f"| {row['first']:.2f} s |",
                        flush=True,
                    )
    print(f"\nLoad of the machine in the last five minutes: {os.getloadavg()[1]:.1f}.")


if __name__ == "__main__":
    main()
