"""Threads on their rank's GPU, and memory pinned away from the main thread; CUDA is imitated."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forge.tensors.threads import pool
from forge.training.checkpoints import staging
from forge.training.checkpoints.staging import Staging

FORGE = Path(staging.__file__).parents[2]


@pytest.fixture
def gpu_3(monkeypatch):
    """CUDA has begun, and this thread's GPU is number 3; returns the GPUs other threads chose."""
    chosen: dict[str, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    name_of = threading.current_thread
    monkeypatch.setattr(torch.cuda, "set_device", lambda n: chosen.update({name_of().name: n}))
    return chosen


def test_threads_take_the_gpu_of_their_maker(gpu_3):
    with pool(2, name="reader") as threads:
        names = set(threads.map(lambda _: threading.current_thread().name, range(8)))
    assert names <= set(gpu_3)  # a thread may have begun without getting work
    assert set(gpu_3.values()) == {3}


def test_no_other_pool_of_threads_is_made_beside_tensors():
    rooms = "tensors models data optim objectives adapters quantization hf parallel training"
    files = [path for room in rooms.split() for path in (FORGE / room).rglob("*.py")]
    makers = [path for path in files if re.search(r"ThreadPoolExecutor\(", path.read_text())]
    assert [path.name for path in makers] == ["threads.py"]


def test_memory_is_pinned_in_the_thread_before_the_first_copy(gpu_3, monkeypatch):
    pinned: list[tuple[str, int]] = []

    def register(address: int, size: int, flags: int) -> int:
        pinned.append((threading.current_thread().name, size))
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: 0)
    monkeypatch.setattr(staging, "_cudart", lambda: runtime)
    monkeypatch.setattr(staging, "_check", lambda status: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    tensors = {"a": torch.arange(100.0), "b": torch.arange(7)}
    room = Staging(pinned=True)
    room.reserve(tensors.values())
    copies = room.copy(tensors).done.result()
    assert all(torch.equal(copies[name], tensors[name]) for name in tensors)
    assert pinned == [("staging_0", 448 + 64)]  # each from a multiple of 64 bytes
    room.copy({"c": torch.ones(1000)}).done.result()
    assert [size for _, size in pinned] == [512, 4032]
    room.close()


def test_memory_that_cannot_be_pinned_is_an_error_of_the_save(gpu_3, monkeypatch):
    def refuse(status: int) -> None:
        raise RuntimeError("out of memory to lock")

    monkeypatch.setattr(staging, "_cudart", lambda: SimpleNamespace(cudaHostRegister=max))
    monkeypatch.setattr(staging, "_check", refuse)
    room = Staging(pinned=True)
    room.reserve([torch.ones(9)])
    with pytest.raises(RuntimeError, match="out of memory to lock"):
        room.copy({"a": torch.ones(9)})
    room.close()
