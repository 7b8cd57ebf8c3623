"""Tensors in a folder: every dtype bit for bit, nothing unpickled, and each kind of damage refused
with which words.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tensor_folders import load, save
from torch import Tensor

from forge.training import tensor_files, tensor_index
from forge.training.staging import Staging
from forge.training.tensor_files import causes, fault, planner, stored, writer
from forge.training.tensor_index import DTYPES
from forge.training.tensor_storage import TensorWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_bits(dtype: torch.dtype, *size: int) -> Tensor:
    """Any bit pattern, NaNs among them; of bool only what is one."""
    if dtype == torch.bool:
        return torch.rand(size) < 0.5
    count = torch.empty(size).numel() * dtype.itemsize
    return torch.randint(256, (count,), dtype=torch.uint8).view(dtype).reshape(size)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    dtype = DTYPES[name]
    tensors = {
        "matrix": random_bits(dtype, 3, 5),
        "scalar": random_bits(dtype),
        "nothing": random_bits(dtype, 0, 4),
    }
    save(tmp_path / "w", tensors)
    back = load(tmp_path / "w")
    assert {key: (value.dtype, value.shape, bits(value)) for key, value in back.items()} == {
        key: (value.dtype, value.shape, bits(value)) for key, value in tensors.items()
    }


def test_no_dtype_that_tensors_can_be_copied_in_is_left_out() -> None:
    known = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    left_out = {str(dtype).removeprefix("torch.") for dtype in known - set(DTYPES.values())}
    assert {
        name
        for name in left_out
        if not re.fullmatch(r"qu?int\d+(x\d)?|bits\d+(x\d)?|u?int[1-7]", name)
    } == set()


def test_views_and_names_of_any_kind(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    odd = {
        "": base,
        'a.b/c\n"\\': base.T,
        "Gewicht ü 重み \x00": base[1:3, ::2],
        "\ud800": base[:, 2].requires_grad_(),
    }
    odd |= {
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "expanded": torch.ones(1).expand(3),
    }
    save(tmp_path / "w", odd)
    back = load(tmp_path / "w")
    assert back.keys() == odd.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in odd.items())
    assert fault(tmp_path / "w") is None


def test_the_files_are_what_the_index_says_read_without_torch(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.arange(5),
        "c": torch.tensor(2.5, dtype=torch.float64),
    }
    save(tmp_path / "w", tensors)
    index = json.loads((tmp_path / "w" / "tensors.json").read_text())
    assert index["format"] == 2
    for name, tensor in tensors.items():
        (chunk,) = index["tensors"][name]["chunks"]
        content = np.fromfile(
            tmp_path / "w" / chunk["file"],
            index["tensors"][name]["dtype"],
            tensor.numel(),
            offset=chunk["start"],
        )
        np.testing.assert_array_equal(
            content.reshape(index["tensors"][name]["size"]), tensor.numpy()
        )


def test_some_of_the_tensors_load_into_another_dtype_and_place(tmp_path: Path) -> None:
    save(tmp_path / "w", {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)})
    target = torch.zeros(3, 2, dtype=torch.float64)
    load(tmp_path / "w", a=target.T)
    assert torch.equal(target, torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T)


def test_copies_are_saved_in_place_of_the_tensors(tmp_path: Path) -> None:
    """As often as one likes: a later save uses the buffer of the first, or a larger one."""
    staging = Staging(pinned=False)
    tensors = {
        "a": torch.arange(1000.0),
        "step": torch.tensor(1),
        "odd": torch.ones(3, dtype=torch.int8),
        "turned": torch.rand(5, 7).T,
    }
    for n in range(3):
        tensors["step"].fill_(n)
        if n == 2:
            tensors["more"] = torch.rand(100_000)
        wanted = {name: tensor.clone() for name, tensor in tensors.items()}
        copies = staging.copy(tensors)
        copies.wait_to_write()
        for tensor in tensors.values():
            tensor.zero_()
        dcp.save(
            tensors, storage_writer=writer(tmp_path / str(n)), planner=planner(copies.result())
        )
        assert all(
            torch.equal(value, wanted[name]) for name, value in load(tmp_path / str(n)).items()
        )
    staging.close()


def test_large_saves_go_to_several_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_index, "LEAST", 4000)
    tensors = {f"t{i}": torch.rand(100 * i) for i in range(1, 10)}
    save(tmp_path / "w", tensors)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "w").glob("*.bin")}
    assert sizes == {
        "rank_0.bin": 4800,
        "rank_0.1.bin": 4400,
        "rank_0.2.bin": 4400,
        "rank_0.3.bin": 4400,
    }
    assert all(torch.equal(value, tensors[name]) for name, value in load(tmp_path / "w").items())
    (tmp_path / "w" / "rank_0.2.bin").unlink()
    assert fault(tmp_path / "w") == f"{tmp_path}/w/rank_0.2.bin is missing"


# What is refused at a save


def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


class Own(Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            3,
            "'it' is no tensor, and only tensors are saved; keep other values in JSON, or make it a tensor",
        ),
        (
            {"inner": "text"},
            "'it.inner' is no tensor, and only tensors are saved; keep other values in JSON, or make it a tensor",
        ),
        (
            torch.ones(2).to_sparse(),
            "'it' is a torch.sparse_coo tensor of torch.float32, and only dense, unquantized ones are saved",
        ),
        (
            torch.ones(2).as_subclass(Own),
            "'it' is a Own, and only plain tensors are saved; save those it is made of",
        ),
    ],
)
def test_what_is_no_plain_tensor_is_refused_by_name(
    tmp_path: Path, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        save(tmp_path / "w", {"fine": torch.ones(1), "it": value})
    assert fault(tmp_path / "w") == f"{tmp_path}/w/tensors.json is missing"


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'it' is a torch\.strided tensor of torch\.qint8, and only dense"
    ):
        save(tmp_path / "w", {"it": quantized()})


def test_a_folder_is_saved_to_once(tmp_path: Path) -> None:
    save(tmp_path / "w", {"a": torch.ones(1)})
    with pytest.raises(FileExistsError, match="w holds tensors already; save into another folder"):
        save(tmp_path / "w", {"a": torch.zeros(1)})
    assert load(tmp_path / "w")["a"].item() == 1


def test_ranks_that_do_not_work_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use_collectives=True"):
        # Nothing wraps what a rank raises when ranks work alone.
        dcp.save({"a": torch.ones(1)}, storage_writer=writer(tmp_path / "w"), use_collectives=False)


# What a kill and a full disk leave


def test_everything_is_on_the_disk_before_the_index_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def noted_sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append(
            f"sync {path.name}" + (f" of {path.stat().st_size}" if path.is_file() else "")
        )
        sync(descriptor)

    def noted_rename(self: Path, target: Path) -> Path:
        events.append(f"rename {self.name} {Path(target).name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    save(tmp_path / "w", {"a": torch.ones(1)})
    index = f"sync .tensors.json.partial of {(tmp_path / 'w' / 'tensors.json').stat().st_size}"
    assert events == [
        "sync rank_0.bin of 4",
        index,
        "rename .tensors.json.partial tensors.json",
        "sync w",
    ]


def test_a_kill_before_the_index_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TensorWriter, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "w", {"a": torch.ones(1)})
    assert fault(tmp_path / "w") == f"{tmp_path}/w/tensors.json is missing"
    with pytest.raises(FileNotFoundError, match=r"tensors\.json"):
        load(tmp_path / "w", a=torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "written"), [("rank_0.bin", "rank_0.bin"), (".tensors.json.partial", "tensors.json")]
)
def test_a_full_disk_is_an_os_error_with_its_path(tmp_path: Path, name: str, written: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        save(tmp_path, {"a": torch.ones(5)})
    assert (caught.value.errno, caught.value.filename) == (
        errno.ENOSPC,
        str(tmp_path / name).replace(".tensors.json.partial", "tensors.json"),
    )
    assert fault(tmp_path) == f"{tmp_path}/tensors.json is missing"


def test_size_is_what_a_save_takes_at_most_and_little_more(tmp_path: Path) -> None:
    tensors = {f"blocks.{i}.weight/ü": torch.ones(i, 100, 3) for i in range(50)}
    save(tmp_path / "w", tensors)
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "w").iterdir())
    assert used <= tensor_files.size(tensors) <= 1.02 * used


# What is refused at a load


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder with a matrix of 4 x 3 and a scalar."""
    save(tmp_path / "w", {"a": torch.arange(12.0).reshape(4, 3), "b": torch.tensor(7)})
    return tmp_path / "w"


class Payload:
    """Pickled, it is a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, (str(self.path), "w"))


def test_a_pickle_beside_the_index_is_never_opened(whole: Path, tmp_path: Path) -> None:
    (whole / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    (whole / "__0.metadata").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    assert load(whole)["b"].item() == 7
    (whole / "tensors.json").unlink()
    with pytest.raises(FileNotFoundError):
        load(whole, b=torch.tensor(0))
    assert not (tmp_path / "ran").exists()
    pickle.loads((whole / ".metadata").read_bytes())
    assert (tmp_path / "ran").exists()  # the payload is live


def test_pickles_in_place_of_tensors_are_damage(whole: Path, tmp_path: Path) -> None:
    torch.save(Payload(tmp_path / "ran"), whole / "rank_0.bin")
    with pytest.raises(
        ValueError,
        match=f"^{re.escape(str(whole))}/rank_0.bin is damaged: the bytes of 'a' are not those that were saved$",
    ):
        load(whole, a=torch.zeros(4, 3))
    assert not (tmp_path / "ran").exists()
    torch.load(whole / "rank_0.bin", weights_only=False)
    assert (tmp_path / "ran").exists()  # the payload is live


def test_no_unpickler_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something is unpickled")

    for where, name in [
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (pickle, "_Unpickler"),
        (torch, "load"),
        (torch, "save"),
    ]:
        monkeypatch.setattr(where, name, forbidden)
    save(tmp_path / "w", {"a": torch.arange(3)})
    assert torch.equal(load(tmp_path / "w")["a"], torch.arange(3))
    assert fault(tmp_path / "w") is None


@pytest.mark.parametrize("position", [0, 47, 48, 55])
def test_a_flipped_bit_is_found(whole: Path, position: int) -> None:
    content = bytearray((whole / "rank_0.bin").read_bytes())
    assert len(content) == 56
    content[position] ^= 4
    (whole / "rank_0.bin").write_bytes(content)
    assert fault(whole) is None
    with pytest.raises(
        ValueError,
        match=f"rank_0.bin is damaged: the bytes of '{'a' if position < 48 else 'b'}' are not",
    ):
        load(whole)


def test_a_torn_file_and_a_missing_one(whole: Path) -> None:
    os.truncate(whole / "rank_0.bin", 50)
    assert fault(whole) == f"{whole}/rank_0.bin is torn: it has 50 bytes of 56"
    with pytest.raises(
        ValueError,
        match=f"^{re.escape(str(whole))}/rank_0.bin is torn: 6 bytes of 'b' are missing$",
    ):
        load(whole)
    (whole / "rank_0.bin").unlink()
    assert fault(whole) == f"{whole}/rank_0.bin is missing"
    with pytest.raises(FileNotFoundError) as caught:
        load(whole)
    assert caught.value.filename == str(whole / "rank_0.bin")


def test_an_index_that_is_a_directory_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tensors.json").mkdir()
    assert fault(tmp_path) == f"{tmp_path}/tensors.json cannot be read: Is a directory"
    with pytest.raises(IsADirectoryError):
        stored(tmp_path)


def test_names_and_sizes_that_differ_are_one_line(whole: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^RuntimeError: Missing key in checkpoint state_dict: c\.$"
    ):
        load(whole, c=torch.zeros(1))
    with pytest.raises(ValueError, match=r"^Size mismatch between saved .* for a$"):
        load(whole, a=torch.zeros(3, 3))


# What causes() makes of a failure


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (ValueError("one\n  two"), ValueError, "one two"),
        (RuntimeError("one\ntwo"), ValueError, "RuntimeError: one two"),
        (
            FileNotFoundError(2, "No such file", "x"),
            FileNotFoundError,
            "[Errno 2] No such file: 'x'",
        ),
        (MemoryError("too little"), MemoryError, "too little"),
        (torch.OutOfMemoryError("too little"), torch.OutOfMemoryError, "too little"),
        (SystemExit(3), SystemExit, "3"),
    ],
    ids=lambda value: (
        getattr(type(value), "__name__", "") if isinstance(value, BaseException) else ""
    ),
)
def test_causes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    expected: type[BaseException],
    message: str,
) -> None:
    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(TensorWriter, "write_data", fails)
    with pytest.raises(expected) as caught:
        save(tmp_path / "w", {"a": torch.ones(1)})
    assert type(caught.value) is expected
    assert str(caught.value) == message


def test_causes_leaves_other_errors_alone() -> None:
    with pytest.raises(KeyError, match="x"), causes():
        raise KeyError("x")
