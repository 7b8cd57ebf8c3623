"""The memory bound that chunked cross-entropy is there for, measured in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "cross_entropy.py"


def growth(chunk_size: int, *options: str) -> int:
    command = [
        sys.executable,
        str(BENCHMARK),
        f"--measure={chunk_size}",
        "--iterations=1",
        *options,
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[
        "growth"
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the resident set from /proc"
)
def test_peak_at_4096_x_32000_is_under_15_percent_of_plain():
    plain, chunked = growth(-1), growth(0)
    assert plain > 3 * 4096 * 32000 * 4 * 0.9, (
        "plain cross-entropy no longer holds three copies of the logits: the bound needs another yardstick"
    )
    assert chunked < 0.15 * plain
