"""Tensors in a folder: every dtype and layout bit for bit, nothing unpickled, and damage refused in
words.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import on_ranks
from run_helpers import load, without_pickle
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from forge.tensors.local import local
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.replicas import Replicas
from forge.training.checkpoints.staging import Staging
from forge.training.checkpoints.tensor_storage import DTYPES, save_tensors, stored_metadata

NAMES = "float32 float64 bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e8m0fnu complex64"
NAMES += " complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_bits(dtype: torch.dtype, *size: int) -> Tensor:
    """Any bit pattern, NaNs among them; of bool only what is one."""
    if dtype == torch.bool:
        return torch.rand(size) < 0.5
    count = torch.empty(size).numel() * dtype.itemsize
    return torch.randint(256, (count,), dtype=torch.uint8).view(dtype).reshape(size)


def test_every_dtype_comes_back_bit_for_bit_without_a_pickle(tmp_path, monkeypatch):
    sizes = ((3, 5), (), (0, 4))
    tensors = {
        f"{name}/{size}": random_bits(DTYPES[name], *size)
        for name in NAMES.split()
        for size in sizes
    }
    without_pickle(monkeypatch)
    save_tensors(tensors, tmp_path / "w")
    saved, back = (
        {key: (value.dtype, value.shape, bits(value)) for key, value in found.items()}
        for found in (tensors, load(tmp_path / "w"))
    )
    assert back == saved


def test_views_and_names_of_any_kind(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    odd = {
        "": base,
        'a.b/c\n"\\': base.T,
        "Gewicht ü 重み": base[1:3, ::2],
        "grad": base[:, 2].requires_grad_(),
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "expanded": torch.ones(1).expand(3),
    }
    save_tensors(odd, tmp_path / "w")
    back = load(tmp_path / "w")
    assert back.keys() == odd.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in odd.items())


def test_the_files_are_what_the_index_says_read_without_torch(tmp_path):
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(2.5)}
    save_tensors(tensors, tmp_path / "w")
    index = json.loads((tmp_path / "w" / "tensors.json").read_text())
    assert index["format"] == 2
    for name, tensor in tensors.items():
        entry = index["tensors"][name]
        (chunk,) = entry["chunks"]
        file, count = tmp_path / "w" / chunk["file"], tensor.numel()
        content = np.fromfile(file, entry["dtype"], count, offset=chunk["start"])
        np.testing.assert_array_equal(content.reshape(entry["size"]), tensor.numpy())
        assert chunk["crc32"] == [zlib.crc32(content.tobytes())]


def test_large_saves_go_to_several_files_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_storage, "FILE_BYTES", 4000)
    tensors = {f"t{i}": torch.rand(100 * i) for i in range(1, 10)}
    save_tensors(tensors, tmp_path / "w")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "w").glob("*.bin"))]
    assert sizes == [4400, 4400, 4400, 4800]
    assert all(torch.equal(value, tensors[name]) for name, value in load(tmp_path / "w").items())


class Own(Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "'it' is no tensor, and only tensors are saved"),
        (torch.ones(2).to_sparse(), "'it' is a torch.sparse_coo tensor of torch.float32, and only"),
        (torch.ones(2).as_subclass(Own), "'it' is a Own, and only plain tensors are saved"),
    ],
)
def test_what_is_no_plain_tensor_is_refused_by_name(tmp_path, value, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        save_tensors({"fine": torch.ones(1), "it": value}, tmp_path / "w")
    with pytest.raises(FileNotFoundError, match=r"tensors\.json"):
        stored_metadata(tmp_path / "w")


# What is refused at a load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A matrix of 4 x 3 and a scalar, 56 bytes in one file."""
    save_tensors({"a": torch.arange(12.0).reshape(4, 3), "b": torch.tensor(7)}, tmp_path / "w")
    return tmp_path / "w"


def refused(folder: Path, message: str):
    with pytest.raises(ValueError) as raised:
        load(folder)
    assert re.fullmatch(message.replace("FOLDER", re.escape(str(folder))), str(raised.value))


@pytest.mark.parametrize("position", [0, 47, 48, 55])
def test_a_flipped_bit_is_found(folder, position):
    content = bytearray((folder / "rank_0.bin").read_bytes())
    content[position] ^= 4
    (folder / "rank_0.bin").write_bytes(content)
    name = "a" if position < 48 else "b"
    refused(folder, f"FOLDER/rank_0.bin is damaged: the bytes of '{name}' are not .* saved")


def test_a_torn_file_and_a_missing_one(folder):
    os.truncate(folder / "rank_0.bin", 50)
    refused(folder, "FOLDER/rank_0.bin is torn: bytes of 'b' are missing")
    (folder / "rank_0.bin").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load(folder)
    assert caught.value.filename == str(folder / "rank_0.bin")


BROKEN: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda i: i.update(format=3), "it has format 3, and this version reads format 2"),
    (lambda i: i.pop("tensors"), "'tensors'"),
    (lambda i: i["tensors"].update(a=3), ".*"),
    (lambda i: i["tensors"]["a"].update(dtype="qint8"), "'qint8'"),
    (lambda i: i["tensors"]["a"].update(size=[4, 4]), "the chunks of 'a' do not fill it"),
    (lambda i: i["tensors"]["a"].update(chunks=[]), "the chunks of 'a' do not fill it"),
    (lambda i: i["tensors"]["a"]["chunks"][0].pop("crc32"), "'crc32'"),
    (
        lambda i: i["tensors"]["a"]["chunks"][0].update(file="../rank_0.bin"),
        "'a' has the file name '../rank_0.bin'",
    ),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_damaged_index_is_refused(folder, change, message):
    index = json.loads((folder / "tensors.json").read_text())
    change(index)
    (folder / "tensors.json").write_text(json.dumps(index))
    refused(folder, rf"FOLDER/tensors.json cannot be used: \w+Error: {message}")


def test_any_cut_of_an_index_is_refused(folder):
    content = (folder / "tensors.json").read_bytes()
    for length in range(len(content.rstrip())):
        (folder / "tensors.json").write_bytes(content[:length])
        refused(folder, r"FOLDER/tensors.json cannot be used: JSONDecodeError: .*")


# Several ranks


def whole() -> dict[str, Tensor]:
    """The same on every rank; sizes that four and two do not divide, few rows, none."""
    draw = torch.Generator().manual_seed(0)
    return {
        "rows": torch.randn(8, 6, generator=draw),
        "uneven": torch.randn(7, 3, generator=draw).bfloat16(),
        "few": torch.randn(2, 5, generator=draw),
        "one": torch.arange(5),
        "none": torch.empty(0, 4),
        "box": torch.randn(5, 7, generator=draw, dtype=torch.float64),
        "columns": torch.randn(3, 9, generator=draw),
        "same": torch.randn(4, generator=draw),
        "plain": torch.tensor(3.5),
    }


def laid_out(tensors: dict[str, Tensor], world: int) -> dict[str, Tensor]:
    """By rows, by rows and columns, by columns, on all ranks, and no DTensor at all."""
    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    layouts: dict[str, tuple[Any, list[Any]]] = dict.fromkeys(
        ("rows", "uneven", "few", "one", "none"), (line, [Shard(0)])
    )
    layouts["box"] = (grid, [Shard(0), Shard(1)])
    layouts["columns"] = (grid, [Replicate(), Shard(1)])
    layouts["same"] = (line, [Replicate()])
    return {
        name: distribute_tensor(tensor, *layouts[name], src_data_rank=None)
        if name in layouts
        else tensor.clone()
        for name, tensor in tensors.items()
    }


def assert_loads(folder: Path, world: int):
    wanted = laid_out(whole(), world)
    got = laid_out({name: torch.zeros_like(tensor) for name, tensor in whole().items()}, world)
    tensor_storage.load_tensors(got, folder)
    for name in wanted:
        assert torch.equal(local(got[name]), local(wanted[name])), name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by four ranks."""
    folder = tmp_path_factory.mktemp("saved") / "weights"
    on_ranks(4, lambda rank: save_tensors(laid_out(whole(), 4), folder))
    return folder


def test_saved_by_four_ranks_loads_on_four_two_and_one(saved):
    on_ranks(4, lambda rank: assert_loads(saved, 4))
    on_ranks(2, lambda rank: assert_loads(saved, 2))
    assert all(torch.equal(load(saved)[name], tensor) for name, tensor in whole().items())
    files = sorted(saved.glob("*.bin"))
    assert [file.name for file in files] == [f"rank_{rank}.bin" for rank in range(4)]
    nbytes = sum(tensor.nbytes for tensor in whole().values())
    assert sum(file.stat().st_size for file in files) == nbytes, "each element is saved once"


def test_copies_are_saved_in_place_of_the_tensors(tmp_path):
    """By two ranks, as often as one likes: a later save uses the buffer of the first, or a larger
    one. One process saves for ranks too.
    """

    def work(rank: int):
        staging, tensors = Staging(pinned=False), laid_out(whole(), 2)
        for n in range(2):
            copies = staging.copy(tensors)
            copies.wait_to_write()
            for tensor in tensors.values():
                local(tensor).zero_()
            save_tensors(tensors, tmp_path / str(n), copies=copies.done.result())
            tensors = laid_out(whole(), 2) | {"more": torch.rand(100_000)}
        staging.close()

    on_ranks(2, work)
    save_tensors(whole(), tmp_path / "2")
    for n in range(3):
        on_ranks(2, lambda rank, n=n: assert_loads(tmp_path / str(n), 2))


def test_of_a_slice_only_its_blocks_are_read_and_checked(tmp_path, monkeypatch):
    """Of 1,000 rows of 40 bytes, in blocks of 4,096, the second quarter lies in the third to the
    fifth block.
    """
    monkeypatch.setattr(tensor_storage, "BLOCK", 4096)
    matrix = torch.rand(1000, 10)
    save_tensors({"a": matrix}, tmp_path / "weights")
    checked: list[int] = []
    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda block: checked.append(len(block)) or crc32(block))

    def work(rank: int):
        mesh = init_device_mesh("cpu", (4,))
        rows = distribute_tensor(torch.zeros(1000, 10), mesh, [Shard(0)], src_data_rank=None)
        tensor_storage.load_tensors({"a": rows}, tmp_path / "weights")
        assert torch.equal(local(rows), matrix[250 * rank : 250 * (rank + 1)])
        assert sum(checked) == [3 * 4096, 3 * 4096, 4 * 4096, 40_000 - 7 * 4096][rank]

    on_ranks(4, work)


def test_a_fault_of_one_rank_is_the_same_error_on_all(saved, tmp_path):
    full, damaged = tmp_path / "full", tmp_path / "damaged"
    full.mkdir()
    (full / "rank_1.bin").symlink_to("/dev/full")
    damaged.mkdir()
    for path in saved.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "rank_3.bin").write_bytes(bytes((saved / "rank_3.bin").stat().st_size))

    def work(rank: int):
        with pytest.raises(OSError) as caught:
            save_tensors(laid_out(whole(), 2), full)
        found = (caught.value.errno, caught.value.filename)
        assert found == (errno.ENOSPC, str(full / "rank_1.bin"))
        with pytest.raises(ValueError, match=r"rank_3.bin is damaged: the bytes of '\w+' are not"):
            tensor_storage.load_tensors(laid_out(whole(), 2), damaged)

    on_ranks(2, work)


def test_one_replica_reads_and_sends_the_bits_to_the_other(tmp_path, monkeypatch):
    """On two replicas of two shards, with a tensor on a single rank's row and numbers of 8 bits."""
    tensors = {
        "weight": random_bits(torch.bfloat16, 6, 5),
        "codes": random_bits(torch.uint8, 7, 3),
        "step": random_bits(torch.float32),
        "row": random_bits(torch.float32, 1, 4),
    }
    save_tensors(tensors, tmp_path / "w")

    def work(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "fsdp"))
        replicas = Replicas(group=mesh.get_group("dp_replicate"), device=torch.device("cpu"))
        read: list[str] = []
        original = tensor_storage._read
        monkeypatch.setattr(
            tensor_storage, "_read", lambda *args: (read.append(args[1]), original(*args))[1]
        )
        layout = [Replicate(), Shard(0)]
        targets = {
            name: distribute_tensor(torch.zeros_like(value), mesh, layout) if value.dim() else value
            for name, value in tensors.items()
        }
        targets["step"] = torch.zeros(())
        tensor_storage.load_tensors(targets, tmp_path / "w", replicas=replicas)
        assert bool(read) == replicas.first == (rank < 2)
        for name, value in targets.items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            assert bits(whole) == bits(tensors[name]), name

    on_ranks(4, work)


def test_a_fault_of_the_replica_that_reads_is_raised_on_all(tmp_path):
    save_tensors({"a": torch.ones(4)}, tmp_path / "w")
    next((tmp_path / "w").glob("*.bin*"), tmp_path / "w" / "tensors.json").write_bytes(b"")

    def work(rank: int) -> None:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp_replicate",))
        replicas = Replicas(group=mesh.get_group("dp_replicate"), device=torch.device("cpu"))
        with pytest.raises((OSError, ValueError)):
            tensor_storage.load_tensors({"a": torch.zeros(4)}, tmp_path / "w", replicas=replicas)

    on_ranks(2, work)
