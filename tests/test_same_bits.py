"""The default's few sequences a step: two ranks that shard or replicate write the same numbers as
one device, to the bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.tiny import TINY

OPTIONS = [
    *TINY,
    "train.batch_size=-1",
    "eval.enabled=true",
    "eval.interval=3",
    "eval.steps=2",
    "eval.sample_tokens=0",
]


def metrics(folder: Path, name: str, *layout: str) -> str:
    text = folder / "text.txt"
    text.write_text(
        "the whale and the white ship of the sea said in his captain that it was a ship. " * 60
    )
    data = ["data=text", f"data.path={text}", f"run.dir={folder / name}"]
    environ = {**os.environ, "FORGE_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "forge.train", *OPTIONS, *data, *layout],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return (folder / name / "metrics.jsonl").read_text()


@pytest.mark.nightly
def test_two_ranks_have_the_bits_of_one(tmp_path: Path) -> None:
    alone = metrics(tmp_path, "alone")
    assert '"eval/loss"' in alone
    assert metrics(tmp_path, "fsdp", "parallel=fsdp", "run.num_processes=2") == alone
    assert metrics(tmp_path, "ddp", "parallel=ddp") == alone
