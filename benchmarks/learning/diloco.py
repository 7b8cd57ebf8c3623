"""DiLoCo beside data parallelism at the same tokens: loss, and bytes between the two replicas.

    python benchmarks/learning/diloco.py --runs DIR > benchmarks/results/diloco.md

Runs that DIR has finished already are not run again.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

import torch

from forge.planning.traffic import busiest_rank
from forge.rundir import saved_config

COMMON = (
    "model.dim=64 model.n_heads=4 model.n_layers=4 model.vocab_size=1024 tokenizer.vocab_size=1024 "
    "train.seq_len=128 train.global_batch_size=16 train.batch_size=8 train.max_steps=600 "
    "optimizer=adamw optimizer.lr=0.003 eval.interval=600 eval.steps=40 eval.sample_prompts=[] "
    "parallel.dp_replicate=2 parallel.dp_shard=1 run.num_processes=2 run.num_threads=1 "
    "run.device=cpu checkpoint=off metrics.enable_console=false"
)
ARMS = {
    "data parallel": "",
    "apart, H = 10": "diloco=on diloco.sync_period=10",
    "apart, H = 30": "diloco=on diloco.sync_period=30",
    "apart, H = 30, 2 fragments, 5 steps of overlap": "diloco=on diloco.sync_period=30 "
    "diloco.fragments=2 diloco.overlap_steps=5 diloco.mixing=0.5",
    "apart, H = 30, outer lr 0.7": "diloco=on diloco.sync_period=30 diloco.outer_lr=0.7",
    "apart, H = 30, joined to the mean": "diloco=on diloco.sync_period=30 diloco.outer_lr=1 "
    "diloco.outer_momentum=0",
    "apart, H = 10, joined to the mean": "diloco=on diloco.sync_period=10 diloco.outer_lr=1 "
    "diloco.outer_momentum=0",
    "apart, H = 10, outer lr 0.1": "diloco=on diloco.sync_period=10 diloco.outer_lr=0.1",
    "apart, H = 10, outer momentum 0": "diloco=on diloco.sync_period=10 diloco.outer_momentum=0",
}
BETWEEN = ("hsdp", "diloco")
"""Techniques whose messages go between replicas, in the model of traffic."""

READING = """
Twenty or sixty outer steps from random weights are far from the paper's runs, which begin with a
trained model and join seldom. Data parallelism is ahead of all of these arms at equal tokens.

Joining more often is not worse in itself: joined to the mean, H = 10 is ahead of H = 30. The outer
optimizer is what is worse at H = 10. It acts 60 times instead of 20, and each time

* takes up a part of the replicas' change at once, lr x (1 + momentum): 0.57 with the defaults
  (outer lr 0.3, momentum 0.9, those of MaxText), 0.19 with lr 0.1, 0.3 without momentum; the
  replicas resume from there, so the rest of their work is undone, every 10 steps instead of 30;
* brings the rest later, by the momentum, over some ten outer steps, and in a direction that
continues lr / (1 - momentum) = 3 times the change in all. With lr 0.1, where that is once the
change, the loss is 0.22 lower; without momentum, where it is 0.3 times, it is 0.1 higher.

So a part that is undone (no momentum) and one that is overshot (the defaults) both cost, and the
plain mean does neither. With frequent joins of a model that is not trained yet take
diloco.outer_lr=1 diloco.outer_momentum=0, or a larger sync_period."""


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    folder = parser.parse_args().runs
    print(f"`python benchmarks/learning/diloco.py`, torch {torch.__version__}, ", end="")
    print(f"Python {platform.python_version()}, two ranks on CPUs, one seed: 600 steps of")
    print("2,048 tokens of the Python standard library, two replicas of 0.3 million parameters.")
    print("Bytes are those that a rank sends to the other replica in a step, by the model of")
    print("traffic; numbers of a few bytes in each step are left out.\n")
    print("| arm | validation loss | bytes a step |")
    print("| --- | --- | --- |")
    for number, (name, words) in enumerate(ARMS.items()):
        run = folder / str(number)
        if not (run / "result.json").is_file():
            command = [sys.executable, "-m", "forge.train", *COMMON.split(), *words.split()]
            subprocess.run([*command, f"run.dir={run}"], check=True, stdout=sys.stderr)
        result = json.loads((run / "result.json").read_text())
        sent = busiest_rank(saved_config.load_own(run))
        count = sum(each.bytes for each in sent if each.technique in BETWEEN)
        print(f"| {name} | {result['metrics']['eval/loss']:.4f} | {count:,} |", flush=True)
    print(READING)


if __name__ == "__main__":
    main()
