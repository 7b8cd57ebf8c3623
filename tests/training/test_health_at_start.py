"""The health check that every run makes before its first step."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.ranks import on_ranks

from forge.parallel.ranks import Ranks
from forge.training.health.at_start import check_start, device_fault, disagreement, no_room


def test_a_device_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of whole numbers is exact, so one wrong bit shows; so does a device's error."""
    assert device_fault(torch.device("cpu")) == ""
    multiply = torch.Tensor.__matmul__

    def flipped(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        product = multiply(first, second)
        if product.dtype == torch.float32:
            product[17, 3] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", flipped)
    assert "cpu computes a product of small whole numbers wrongly" in device_fault(
        torch.device("cpu")
    )

    def broken(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    monkeypatch.setattr(torch.Tensor, "__matmul__", broken)
    with pytest.raises(ValueError, match=r"rank 0 on \S+: cpu cannot compute: CUDA error: an ill"):
        check_start(Path(), torch.device("cpu"), Ranks())


def test_ranks_that_differ_from_the_main_rank() -> None:
    """The first one is named, with its host, the two values, and what to do."""
    facts = {"device": "", "torch": "2.13.0", "config": "ab"}
    ranks = [("n0", facts), ("n0", facts), ("n1", facts | {"torch": "2.12.0"})]
    assert disagreement(ranks) == (
        "rank 2 on n1 has torch 2.12.0, and rank 0 on n0 2.13.0; every host needs the same software"
    )
    ranks[1] = ("n0", facts | {"config": "cd"})
    assert "rank 1 on n0 has config cd" in disagreement(ranks)
    assert "one file system with the run directory" in disagreement(ranks)
    assert disagreement(ranks[:1]) == ""


def test_two_ranks_that_read_different_configs(tmp_path: Path) -> None:
    """Both raise it, so that neither waits for the other."""

    def work(rank: int) -> None:
        folder = tmp_path / str(rank)
        folder.mkdir()
        (folder / "config.yaml").write_text(f"seed: {rank}\n")
        host: Any = torch.distributed.new_group(backend="gloo")
        ranks = Ranks(rank=rank, size=2, host=host)
        with pytest.raises(ValueError, match=r"rank 1 on \S+ has config \w{12}, and rank 0"):
            check_start(folder, torch.device("cpu"), ranks)
        check_start(tmp_path / "0", torch.device("cpu"), ranks)

    on_ranks(2, work)


def test_no_room_for_a_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage: Any = SimpleNamespace(free=10 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    assert no_room(tmp_path / "run" / "checkpoints", 10 * 2**20) == ""
    message = no_room(tmp_path / "run" / "checkpoints", 20 * 2**20)
    assert message.startswith("a checkpoint needs 20")
    assert f"in {tmp_path}; make room, or checkpoint.dir=DIR" in message
