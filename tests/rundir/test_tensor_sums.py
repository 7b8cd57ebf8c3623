"""All bytes of tensors against their checksums, without torch; tests/training has real ones."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from forge.rundir import tensor_sums


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tensors of two blocks, of none and of one in a file, and one in another."""
    monkeypatch.setattr(tensor_sums, "BLOCK", 4)

    def chunk(file: str, start: int, *blocks: bytes) -> dict:
        return {"file": file, "start": start, "crc32": [zlib.crc32(block) for block in blocks]}

    tensors = {
        "last": [chunk("rank_0.bin", 6, b"ghij")],
        "none": [chunk("rank_0.bin", 6)],
        "first": [chunk("rank_0.bin", 0, b"abcd", b"ef"), chunk("rank_1.bin", 0, b"k")],
    }
    content = {"tensors": {name: {"chunks": chunks} for name, chunks in tensors.items()}}
    (tmp_path / "tensors.json").write_text(json.dumps(content))
    (tmp_path / "rank_0.bin").write_bytes(b"abcdefghij")
    (tmp_path / "rank_1.bin").write_bytes(b"k")
    return tmp_path


def test_each_block_is_read(folder: Path) -> None:
    assert tensor_sums.tensor_damage(folder) is None
    for place, name in ((0, "first"), (5, "first"), (6, "last"), (9, "last")):
        content = bytearray(b"abcdefghij")
        content[place] ^= 1
        (folder / "rank_0.bin").write_bytes(content)
        said = f"rank_0.bin is damaged: the bytes of '{name}' are not those that were saved"
        assert tensor_sums.tensor_damage(folder) == f"{folder}/{said}"


def test_what_is_missing_is_said(folder: Path) -> None:
    (folder / "rank_0.bin").write_bytes(b"abcde")
    torn = f"{folder}/rank_0.bin is torn: bytes of "
    assert (tensor_sums.tensor_damage(folder) or "").startswith(torn)
    (folder / "rank_0.bin").unlink()
    said = f"{folder}/rank_0.bin cannot be read: No such file or directory"
    assert tensor_sums.tensor_damage(folder) == said
    (folder / "tensors.json").write_text('{"tensors": [1]}')
    said = f"{folder}/tensors.json cannot be used: AttributeError: "
    assert (tensor_sums.tensor_damage(folder) or "").startswith(said)
