"""A small sweep with one of everything: arms that are better and worse, and points that failed,
stopped, run and wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from example_sweep import Example

from forge.rundir.lock import Lock

WHY = "the loss was not finite in 10 steps in a row | see <logs>"


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """lr=0.001 (the first, of three seeds), lr=0.002 (better) and lr=0.03 (one seed is done)."""
    example = Example(tmp_path_factory.mktemp("sweeps") / "rates", steps=200)
    for seed in (1, 2, 3):
        example.done(["optimizer.lr=0.001"], seed=seed)
        example.done(["optimizer.lr=0.002"], seed=seed, gain=0.2)
    example.done(["optimizer.lr=0.03"], seed=1, gain=-0.5)
    example.failed(["optimizer.lr=0.03"], seed=2, at=50, why=f"{WHY}\nsecond line")
    running = example.partial(["optimizer.lr=0.03"], seed=3, at=100)
    example.waiting(["optimizer.lr=0.03"], seed=4)
    with Lock(running.path):
        yield example.sweep.path
