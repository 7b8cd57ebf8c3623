"""Where the example package is, and the overrides of a small run that uses it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docs" / "example_package"
USE = ["hydra.searchpath=[pkg://forge_example.conf]", "run.trust=[forge_example.]"]
SMALL = [
    "data=text",
    "data.path=text.txt",
    "data.num_workers=0",
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "train.seq_len=16",
    "train.batch_size=4",
    "scheduler.warmup_steps=2",
    "metrics.log_interval=1",
    "eval.interval=4",
    "eval.steps=1",
    "eval.sample_tokens=4",
    "run.device=cpu",
    "run.num_threads=1",
]
Verb = Callable[..., subprocess.CompletedProcess[str]]
