"""Replicas that train apart: the paper's algorithm in numpy, data parallelism, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import Train, trains
from run_helpers import assert_bit_equal, step_of, stored

TWO = "diloco=on diloco.sync_period=3 optimizer=adamw optimizer.lr=0.003 train.global_batch_size=8"


@pytest.fixture
def train(tmp_path: Path, text_file: Path) -> Train:
    return trains(tmp_path, text_file)


def test_thin(train: Train) -> None:
    run = train("a", "replicas2", 7, TWO, "checkpoint.interval=5")
    print(sorted(stored(step_of(run, 5))))
    two = train("b", "replicas2", 5, TWO)
    two = train("b", "replicas2", 7, TWO)
    assert_bit_equal(stored(step_of(two, 7)), stored(step_of(run, 7)))
