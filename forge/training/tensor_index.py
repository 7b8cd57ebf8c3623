"""tensors.json: which tensors a folder of raw bytes holds and where, as strict, versioned JSON."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

FORMAT = 2
INDEX = "tensors.json"
AT_ONCE = 4
"""Threads of a rank that write files or read them; checksums, copies and files let other threads
run meanwhile.
"""
LEAST = 1 << 26
"""Bytes that are worth a file and a thread of their own."""
BLOCK = 1 << 24
"""Bytes of a chunk that share a checksum: a part of a chunk is read and checked without the rest.
"""
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32"),
        *(
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        ),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"),
    )
}
"""Those that are no more than their bytes: a quantized tensor also has scales."""

_MOST = 2**63 - 1
_FILE = re.compile(r"rank_[0-9]{1,9}(\.[0-9]{1,3})?\.bin")


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, [offsets, offsets + sizes), whose elements lie in row-major order,
    little-endian, from byte `start` of `file`.

    crc32: of each BLOCK of its bytes, the last of which may be shorter.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor: its type, its whole size, and the boxes that fill it."""

    dtype: torch.dtype
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def length(self, chunk: Chunk) -> int:
        """Bytes of a chunk."""
        return math.prod(chunk.sizes) * self.dtype.itemsize


Entries = dict[str, Entry]


def file_name(rank: int, part: int = 0) -> str:
    """The file of a rank, or one of several that it writes at once; no other names are read."""
    return f"rank_{rank}.{part}.bin" if part else f"rank_{rank}.bin"


def blocks(length: int) -> list[slice]:
    """The bytes of a chunk of that length that share a checksum, from its first byte on."""
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def write(folder: Path, entries: Entries) -> None:
    """Write the index, which makes the folder complete: under another name, on the disk, then
    renamed. Raises OSError.
    """
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(_plain(entry))}" for name, entry in entries.items()
    )
    scratch = folder / f".{INDEX}.partial"
    with scratch.open("w", encoding="ascii") as file:
        file.write(f'{{"format": {FORMAT}, "tensors": {{\n{lines}\n}}}}\n')
        file.flush()
        os.fsync(file.fileno())
    scratch.rename(folder / INDEX)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> Entries:
    """The index of a folder. Raises OSError, and ValueError in one line, when it is malformed or
    newer than this version.
    """
    path = folder / INDEX
    try:
        content = json.loads(
            path.read_bytes().decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number
        )
        return _entries(content)
    except RecursionError:
        raise ValueError(f"{path} cannot be used: it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {' '.join(str(error).split())}") from error


def needed(entries: Entries) -> dict[str, int]:
    """The length in bytes that each file must have at least."""
    lengths: dict[str, int] = {}
    for entry in entries.values():
        for chunk in entry.chunks:
            lengths[chunk.file] = max(lengths.get(chunk.file, 0), chunk.start + entry.length(chunk))
    return lengths


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        "dtype": str(entry.dtype).removeprefix("torch."),
        "size": entry.size,
        "chunks": [vars(chunk) for chunk in entry.chunks],
    }


def _entries(content: Any) -> Entries:
    _demand(isinstance(content, dict), "it is no index of tensors")
    version = _whole(content.get("format"), "its format")
    age = "a newer" if version > FORMAT else "an older"
    _demand(
        version == FORMAT,
        f"it has format {version}, and this version of forge reads format {FORMAT}; {age} version wrote it",
    )
    _, tensors = _fields(content, "the index", "format", "tensors")
    _demand(isinstance(tensors, dict), "its tensors are no object")
    entries = {name: _entry(f"tensor {name!r}", raw) for name, raw in tensors.items()}
    _check_apart(entries)
    return entries


def _entry(what: str, raw: Any) -> Entry:
    name, size, chunks = _fields(raw, what, "dtype", "size", "chunks")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ValueError(f"{what} has the unknown dtype {name!r:.40}")
    _demand(isinstance(chunks, list), f"the chunks of {what} are no list")
    entry = Entry(dtype, _sizes(size, what), tuple(_chunk(one, what) for one in chunks))
    rank = len(entry.size)
    for c in entry.chunks:
        if (
            len(c.offsets) != rank
            or len(c.sizes) != rank
            or any(o + s > n for o, s, n in zip(c.offsets, c.sizes, entry.size, strict=True))
        ):
            raise ValueError(f"a chunk of {what} lies outside of it")
    sums = all(len(c.crc32) == -(-entry.length(c) // BLOCK) for c in entry.chunks)
    _demand(sums, f"a chunk of {what} has not one checksum for each {BLOCK} bytes")
    whole = sum(math.prod(chunk.sizes) for chunk in entry.chunks) == math.prod(entry.size)
    _demand(
        whole and len({chunk.offsets for chunk in entry.chunks}) == len(entry.chunks),
        f"the chunks of {what} do not fill it once",
    )
    return entry


def _chunk(raw: Any, what: str) -> Chunk:
    offsets, sizes, file, start, crc32 = _fields(
        raw, what, "offsets", "sizes", "file", "start", "crc32"
    )
    if not (isinstance(file, str) and _FILE.fullmatch(file)):
        raise ValueError(f"{what} has the file name {file!r}")
    return Chunk(
        _sizes(offsets, what), _sizes(sizes, what), file, _whole(start, what), _sizes(crc32, what)
    )


def _check_apart(entries: Entries) -> None:
    """No byte belongs to two chunks: what is read is never larger than what lies on the disk."""
    spans = sorted(
        (c.file, c.start, c.start + e.length(c), name)
        for name, e in entries.items()
        for c in e.chunks
    )
    for before, after in pairwise(span for span in spans if span[1] < span[2]):
        if before[0] == after[0] and before[2] > after[1]:
            raise ValueError(f"tensor {after[3]!r} shares bytes of {after[0]} with {before[3]!r}")


def _fields(raw: Any, what: str, *names: str) -> list[Any]:
    if (
        not isinstance(raw, dict)
        or len(raw) != len(names)
        or not all(name in raw for name in names)
    ):
        raise ValueError(f"{what} is not described by {', '.join(names)}")
    return [raw[name] for name in names]


def _sizes(raw: Any, what: str) -> tuple[int, ...]:
    if not isinstance(raw, list):
        raise ValueError(f"{what} has {raw!r:.40} for a list of whole numbers")
    return tuple([_whole(one, what) for one in raw])


def _whole(raw: Any, what: str) -> int:
    if type(raw) is not int or not 0 <= raw <= _MOST:
        raise ValueError(f"{what} has {raw!r:.40} for a whole number")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    _demand(len(content) == len(pairs), "a key stands there twice")
    return content


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _demand(holds: bool, fault: str) -> None:
    if not holds:
        raise ValueError(fault)
