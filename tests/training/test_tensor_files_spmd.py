"""Tensors saved by four ranks come back on four, two and one, bit for bit; a rank that fails fails
all of them.
"""

from __future__ import annotations

import errno
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import on_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from forge.training import tensor_files, tensor_index
from forge.training.staging import Staging
from forge.training.tensor_files import causes, fault, planner, reader, stored, writer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def whole() -> dict[str, Tensor]:
    """The same on every rank; sizes that four and two do not divide, fewer rows than ranks, none at
    all.
    """
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
    """Each on its layout: by rows, by rows and columns, by columns, on all ranks, and no DTensor at
    all.
    """
    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    layouts: dict[str, tuple[Any, list[Any]]] = {
        name: (line, [Shard(0)]) for name in ("rows", "uneven", "few", "one", "none")
    }
    layouts |= {
        "box": (grid, [Shard(0), Shard(1)]),
        "columns": (grid, [Replicate(), Shard(1)]),
        "same": (line, [Replicate()]),
    }
    return {
        name: distribute_tensor(tensor, *layouts[name], src_data_rank=None)
        if name in layouts
        else tensor.clone()
        for name, tensor in tensors.items()
    }


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def assert_loads(folder: Path, world: int) -> None:
    wanted = laid_out(whole(), world)
    got = laid_out({name: torch.zeros_like(tensor) for name, tensor in whole().items()}, world)
    dcp.load(got, storage_reader=reader(folder))
    for name in wanted:
        assert torch.equal(local(got[name]), local(wanted[name])), name


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "weights"
    on_ranks(4, lambda rank: dcp.save(laid_out(whole(), 4), storage_writer=writer(folder)) and None)
    return folder


@pytest.mark.parametrize("world", [4, 2])
def test_loads_on_ranks(saved: Path, world: int) -> None:
    on_ranks(world, lambda rank: assert_loads(saved, world))


def test_loads_in_one_process(saved: Path) -> None:
    got = {name: torch.zeros_like(tensor) for name, tensor in whole().items()}
    dcp.load(got, storage_reader=reader(saved))
    assert all(torch.equal(got[name], tensor) for name, tensor in whole().items())
    assert {
        name: (tuple(what.size), what.properties.dtype) for name, what in stored(saved).items()
    } == {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in whole().items()}
    assert fault(saved) is None


def test_every_element_is_saved_once_and_by_the_ranks_that_own_it(saved: Path) -> None:
    files = sorted(path.name for path in saved.iterdir())
    assert files == ["rank_0.bin", "rank_1.bin", "rank_2.bin", "rank_3.bin", "tensors.json"]
    assert sum((saved / name).stat().st_size for name in files[:-1]) == sum(
        tensor.nbytes for tensor in whole().values()
    )
    assert len(stored(saved)["box"].chunks) == 4


def test_size_counts_the_chunks_and_files_of_all_ranks(saved: Path) -> None:
    used = sum(path.stat().st_blocks * 512 for path in saved.iterdir())

    def check(rank: int) -> None:
        assert used <= tensor_files.size(laid_out(whole(), 4)) < 3 * used

    on_ranks(4, check)


def test_what_one_process_saved_loads_on_ranks(tmp_path: Path) -> None:
    dcp.save(whole(), storage_writer=writer(tmp_path / "weights"))
    on_ranks(2, lambda rank: assert_loads(tmp_path / "weights", 2))


def test_an_asynchronous_save_on_ranks_holds_the_values_at_its_call(tmp_path: Path) -> None:
    def save(rank: int) -> None:
        staging, tensors = Staging(pinned=False), laid_out(whole(), 2)
        copies = staging.copy(tensors)
        copies.wait_to_write()
        for tensor in tensors.values():
            local(tensor).zero_()
        dcp.save(
            tensors, storage_writer=writer(tmp_path / "weights"), planner=planner(copies.result())
        )
        staging.close()

    on_ranks(2, save)
    on_ranks(2, lambda rank: assert_loads(tmp_path / "weights", 2))


def test_of_a_slice_only_its_blocks_are_read_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,000 rows of 40 bytes, in blocks of 4,096, the second quarter lies in the third to the
    fifth block.
    """
    monkeypatch.setattr(tensor_index, "BLOCK", 4096)
    matrix = torch.rand(1000, 10)
    dcp.save({"a": matrix}, storage_writer=writer(tmp_path / "weights"))
    checked: list[int] = []
    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda block: checked.append(len(block)) or crc32(block))

    def load(rank: int) -> None:
        rows = distribute_tensor(
            torch.zeros(1000, 10), init_device_mesh("cpu", (4,)), [Shard(0)], src_data_rank=None
        )
        dcp.load({"a": rows}, storage_reader=reader(tmp_path / "weights"))
        assert torch.equal(local(rows), matrix[250 * rank : 250 * (rank + 1)])
        assert sum(checked) == [3 * 4096, 3 * 4096, 4 * 4096, 40_000 - 7 * 4096][rank]

    on_ranks(4, load)


def test_a_full_disk_of_one_rank_is_an_os_error_on_all(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "rank_1.bin").symlink_to("/dev/full")

    def save(rank: int) -> None:
        with pytest.raises(OSError) as caught, causes():
            dcp.save(laid_out(whole(), 2), storage_writer=writer(folder))
        assert (caught.value.errno, caught.value.filename) == (
            errno.ENOSPC,
            str(folder / "rank_1.bin"),
        )

    on_ranks(2, save)
    assert fault(folder) == f"{folder}/tensors.json is missing"


def test_a_damaged_file_and_index_are_refused_by_all_ranks(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "rank_3.bin").write_bytes(bytes((saved / "rank_3.bin").stat().st_size))

    def load(message: str) -> None:
        with pytest.raises(ValueError, match=message), causes():
            dcp.load(laid_out(whole(), 2), storage_reader=reader(folder))

    on_ranks(
        2,
        lambda rank: load(
            r"rank_3.bin is damaged: the bytes of '\w+' are not those that were saved"
        ),
    )
    (folder / "tensors.json").write_text("{")
    on_ranks(
        2, lambda rank: load(r"^\S+/tensors.json cannot be used: .*line 1 column 2 \(char 1\)$")
    )
