"""tensors.json: which tensors a folder holds, and in which bytes of which files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

FORMAT = 2
INDEX = "tensors.json"
BLOCK = 1 << 24
"""Bytes that share a checksum: a part of a chunk is read and checked without the rest."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")
}
"""By name; a quantized tensor is more than its bytes, and cannot be saved."""


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, [offsets, offsets + sizes): row-major, little-endian, from byte `start` of
    `file`.

    crc32: of each BLOCK of its bytes, the last of which may be shorter.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    crc32: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor: its type, its global size, and the chunks that fill it."""

    dtype: torch.dtype
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def nbytes(self, chunk: Chunk) -> int:
        """Bytes of a chunk."""
        return math.prod(chunk.sizes) * self.dtype.itemsize


Entries = dict[str, Entry]


def blocks(nbytes: int) -> list[slice]:
    """The parts of a chunk of so many bytes that share a checksum."""
    return [slice(start, min(start + BLOCK, nbytes)) for start in range(0, nbytes, BLOCK)]


def write(folder: Path, entries: Entries) -> None:
    """Write the index, a tensor a line. Raises OSError."""
    lines = []
    for name, entry in entries.items():
        plain = asdict(entry) | {"dtype": str(entry.dtype).removeprefix("torch.")}
        lines.append(f"{json.dumps(name)}: {json.dumps(plain)}")
    text = f'{{"format": {FORMAT}, "tensors": {{\n' + ",\n".join(lines) + "\n}}\n"
    (folder / INDEX).write_text(text, encoding="ascii")


def read(folder: Path) -> Entries:
    """Read the index. Raises OSError, and ValueError in one line when it is damaged or of another
    format.
    """
    path = folder / INDEX
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            found = content["format"]
            raise ValueError(f"it has format {found}, and this version reads format {FORMAT}")
        return {name: _entry(name, **raw) for name, raw in content["tensors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path} cannot be used: {reason}") from error


def _entry(name: str, dtype: str, size: list[int], chunks: list[dict[str, Any]]) -> Entry:
    found = []
    for raw in chunks:
        lists: dict[str, Any] = {key: tuple(raw[key]) for key in ("offsets", "sizes", "crc32")}
        chunk = Chunk(**(raw | lists))
        if not re.fullmatch(r"rank_[0-9]+(\.[0-9]+)?\.bin", chunk.file):
            raise ValueError(f"{name!r} has the file name {chunk.file!r}")
        found.append(chunk)
    if sum(math.prod(chunk.sizes) for chunk in found) != math.prod(size):
        raise ValueError(f"the chunks of {name!r} do not fill it")
    return Entry(DTYPES[dtype], tuple(size), tuple(found))
