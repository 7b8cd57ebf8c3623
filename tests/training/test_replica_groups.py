"""Replica groups by torchft: equal to data parallelism, and one killed and started again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge.config.optimizers.fault_tolerance import FaultTolerance

REPOSITORY = Path(__file__).parents[2]


def test_groups_divide_the_batch_as_ranks_do() -> None:
    """Two groups of three ranks read the six parts of a batch, in the order of ranks."""
    parts = [
        FaultTolerance(enabled=True, replica_id=group, group_size=2).part_of(rank, 3)
        for group in range(2)
        for rank in range(3)
    ]
    assert parts == [(part, 6) for part in range(6)]
    assert FaultTolerance().part_of(1, 3) == (1, 3)


@pytest.mark.nightly
@pytest.mark.skipif(FaultTolerance.has_torchft(), reason="torchft is installed")
def test_without_torchft_a_run_is_refused_with_one_message(tmp_path: Path) -> None:
    words = ["fault_tolerance=torchft", "fault_tolerance.lighthouse=http://localhost:1"]
    command = [sys.executable, "-m", "forge.train", *words, f"run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)
    assert done.returncode == 2
    assert "torchft is not installed" in done.stderr + done.stdout
    assert "pip install 'forge-lm[torchft]'" in done.stderr + done.stdout
    assert not (tmp_path / "run").exists()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's script, which starts groups as processes."""
    pytest.importorskip("torchft")
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks" / "learning"))
    import replica_groups  # type: ignore[import-not-found]

    return replica_groups


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_two_groups_are_data_parallelism(script, tmp_path: Path, ranks: int) -> None:
    """Losses of 20 steps are those of one run of all ranks, in fp32; two ranks have FSDP."""
    server = script.lighthouse(2)
    try:
        equal = script.as_data_parallel(script.Groups(tmp_path, server.address()), ranks=ranks)
    finally:
        server.shutdown()
    assert equal["loss"] <= 1e-6
    assert equal["between groups"] == 0.0


@pytest.mark.nightly
def test_a_killed_group_heals(script, tmp_path: Path) -> None:
    """The other continues without it; started again, it has the other's weights to the bit."""
    server = script.lighthouse(1)
    try:
        killed = script.killed_and_healed(script.Groups(tmp_path, server.address()), steps=240)
    finally:
        server.shutdown()
    assert killed["steps alone"] > 0
    assert killed["joined at"] > killed["died after"] + 1
    assert killed["last participants"] == 2.0
    assert killed["weights"] == 0.0
