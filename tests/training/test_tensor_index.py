"""The index of tensors is taken strictly: any other content is refused, in the same one line
whoever asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensor_folders import load, save

from forge.training.tensor_files import fault, stored

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A folder with a matrix of 4 x 3 and a scalar."""
    save(tmp_path / "w", {"a": torch.arange(12.0).reshape(4, 3), "b": torch.tensor(7)})
    return tmp_path / "w"


def chunk(index: dict[str, Any], **changes: Any) -> None:
    index["tensors"]["a"]["chunks"][0] |= changes


def again(index: dict[str, Any], **changes: Any) -> None:
    chunks = index["tensors"]["a"]["chunks"]
    chunks.append(chunks[0] | changes)


NAMES_OF_FILES = [
    "/etc/passwd",
    "../rank_0.bin",
    "rank_0.bin/../../x",
    "rank_0.bin\n",
    "rank_.bin",
    "rank_0..bin",
    "rank_0.0001.bin",
    ".metadata",
    "",
    "rank_١.bin",
    3,
    None,
]
NO_NUMBERS = [-1, 1.0, True, "1", None, 2**63, [0]]
BROKEN: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (
        lambda i: i.update(format=3),
        "it has format 3, and this version of forge reads format 2; a newer version wrote it",
    ),
    (
        lambda i: i.update(format=1),
        "it has format 1, and this version of forge reads format 2; an older version wrote it",
    ),
    (lambda i: i.update(format=True), "its format has True for a whole number"),
    (lambda i: i.pop("format"), "its format has None for a whole number"),
    (lambda i: i.pop("tensors"), "the index is not described by format, tensors"),
    (lambda i: i.update(planner_data={}), "the index is not described by format, tensors"),
    (lambda i: i.update(tensors=[]), "its tensors are no object"),
    (lambda i: i["tensors"].update(a=3), "tensor 'a' is not described by dtype, size, chunks"),
    (
        lambda i: i["tensors"]["a"].update(layout="strided"),
        "tensor 'a' is not described by dtype, size, chunks",
    ),
    (lambda i: i["tensors"]["a"].update(dtype="qint8"), "tensor 'a' has the unknown dtype 'qint8'"),
    (
        lambda i: i["tensors"]["a"].update(dtype=["float32"]),
        "tensor 'a' has the unknown dtype ['float32']",
    ),
    (
        lambda i: i["tensors"]["a"].update(size="43"),
        "tensor 'a' has '43' for a list of whole numbers",
    ),
    (lambda i: i["tensors"]["a"].update(chunks={}), "the chunks of tensor 'a' are no list"),
    (lambda i: i["tensors"]["a"].update(chunks=[]), "the chunks of tensor 'a' do not fill it once"),
    (
        lambda i: i["tensors"]["a"].update(size=[4, 4]),
        "the chunks of tensor 'a' do not fill it once",
    ),
    (lambda i: i["tensors"]["a"].update(size=[2, 3]), "a chunk of tensor 'a' lies outside of it"),
    (lambda i: i["tensors"]["a"].update(size=[12]), "a chunk of tensor 'a' lies outside of it"),
    (
        lambda i: i["tensors"]["a"]["chunks"].append(i["tensors"]["a"]["chunks"][0]),
        "the chunks of tensor 'a' do not fill it once",
    ),
    (
        lambda i: (chunk(i, sizes=[2, 3]), again(i, start=24)),
        "the chunks of tensor 'a' do not fill it once",
    ),
    (lambda i: chunk(i, offsets=[1, 0]), "a chunk of tensor 'a' lies outside of it"),
    (lambda i: chunk(i, sizes=[2, 3]), "the chunks of tensor 'a' do not fill it once"),
    (lambda i: chunk(i, offsets=[0]), "a chunk of tensor 'a' lies outside of it"),
    (lambda i: chunk(i, offsets=None), "tensor 'a' has None for a list of whole numbers"),
    (
        lambda i: chunk(i, length=3),
        "tensor 'a' is not described by offsets, sizes, file, start, crc32",
    ),
    (
        lambda i: chunk(i, crc32=[]),
        "a chunk of tensor 'a' has not one checksum for each 16777216 bytes",
    ),
    (
        lambda i: chunk(i, crc32=[0, 0]),
        "a chunk of tensor 'a' has not one checksum for each 16777216 bytes",
    ),
    (lambda i: chunk(i, crc32=3), "tensor 'a' has 3 for a list of whole numbers"),
    (lambda i: chunk(i, start=9), "tensor 'b' shares bytes of rank_0.bin with 'a'"),
    *[
        (lambda i, n=n: chunk(i, file=n), f"tensor 'a' has the file name {n!r}")
        for n in NAMES_OF_FILES
    ],
    *[
        (lambda i, n=n: chunk(i, start=n), f"tensor 'a' has {n!r} for a whole number")
        for n in NO_NUMBERS
    ],
    *[
        (
            lambda i, n=n: i["tensors"]["a"].update(size=[4, n]),
            f"tensor 'a' has {n!r} for a whole number",
        )
        for n in NO_NUMBERS
    ],
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_an_index_is_taken_strictly(
    whole: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    index = json.loads((whole / "tensors.json").read_text())
    change(index)
    (whole / "tensors.json").write_text(json.dumps(index))
    assert_refused(whole, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"\x80\x04\x95", "'utf-8' codec can't decode byte 0x80 in position 0: invalid start byte"),
        (b"[]", "it is no index of tensors"),
        (b'{"format": 1, "tensors": {}, "format": 1}', "a key stands there twice"),
        (b'{"format": NaN}', "NaN is no number of JSON"),
        (b"[" * 100_000, "it is nested too deep"),
    ],
    ids=["empty", "pickle", "list", "twice", "nan", "deep"],
)
def test_an_index_of_other_content_is_refused(whole: Path, content: bytes, message: str) -> None:
    (whole / "tensors.json").write_bytes(content)
    assert_refused(whole, message)


def test_any_cut_of_an_index_is_refused(whole: Path) -> None:
    content = (whole / "tensors.json").read_bytes()
    for length in range(len(content.rstrip())):
        (whole / "tensors.json").write_bytes(content[:length])
        assert (fault(whole) or "").startswith(f"{whole}/tensors.json cannot be used: ")


def assert_refused(folder: Path, message: str) -> None:
    expected = f"{folder}/tensors.json cannot be used: {message}"
    assert fault(folder) == expected
    assert "\n" not in expected
    for ask in (lambda: stored(folder), lambda: load(folder, a=torch.zeros(4, 3))):
        with pytest.raises(ValueError) as caught:
            ask()
        assert str(caught.value) == expected
