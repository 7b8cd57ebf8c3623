"""Safetensors files of a folder, written tensor by tensor from forge's tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from forge.families.shards import INDEX, SINGLE
from forge.families.table import Row, shapes
from forge.hf.read import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}
Read = Callable[[str], Tensor]
"""Returns the whole tensor under a name of forge, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A stored tensor, made of rows of forge's tensors.

    number: the expert in a stack, None outside of stacks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: tuple[Row, ...]
    number: int | None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def stored_pieces(rows: Sequence[Row], dtype: torch.dtype) -> list[Piece]:
    """Return every stored tensor in the order of forge's tensors. Buffers stay in fp32."""
    sizes, joined = shapes(rows), dict[str, list[tuple[Row, int | None]]]()
    for row in rows:
        for number, name in enumerate(row.names):
            joined.setdefault(name, []).append((row, number if row.theirs.stacked else None))
    return [
        Piece(
            name=name,
            shape=sizes[name],
            dtype=torch.float32 if parts[0][0].ours.role == "buffer" else dtype,
            rows=tuple(row for row, _ in parts),
            number=parts[0][1],
        )
        for name, parts in joined.items()
    ]


def write_weights(
    folder: Path, rows: Sequence[Row], read: Read, *, dtype: torch.dtype, shard_bytes: int
) -> list[str]:
    """Write forge's tensors as stored tensors; return the names of the files.

    At most one stored tensor and its parts in forge are in memory.
    """
    cached = _Last(read)
    pieces = stored_pieces(rows, dtype)
    return write_pieces(folder, pieces, lambda piece: theirs(piece, cached), shard_bytes)


def write_pieces(
    folder: Path, pieces: Sequence[Piece], values: Callable[[Piece], Tensor], shard_bytes: int
) -> list[str]:
    """Write stored tensors into files of at most shard_bytes; return the names of the files.

    A larger tensor has a file alone. With several files, an index is written too.
    """
    files = list(_in_files(pieces, shard_bytes))
    width = f"{len(files):05d}"
    names = [f"model-{n:05d}-of-{width}.safetensors" for n in range(1, len(files) + 1)]
    names = [SINGLE] if len(files) == 1 else names
    for name, held in zip(names, files, strict=True):
        with (folder / name).open("wb") as file:
            _header(file, held)
            for piece in held:
                content = values(piece).to(piece.dtype).contiguous()
                assert tuple(content.shape) == piece.shape, piece.name
                file.write(content.view(-1).view(torch.uint8).numpy().data)
    if len(files) > 1:
        file_of = {p.name: name for name, held in zip(names, files, strict=True) for p in held}
        total = sum(piece.nbytes for held in files for piece in held)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_of.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return names


def theirs(piece: Piece, read: Read) -> Tensor:
    """Return the values of a stored tensor."""
    joined: Tensor | None = None
    for row in piece.rows:
        ours = read(row.ours.name)
        values = ours if piece.number is None else ours[piece.number]
        if row.index is not None:
            dim = row.theirs.dim - int(row.theirs.stacked)
            if joined is None:
                size = sum(len(r.index or ()) for r in piece.rows)
                joined = values.new_empty([*values.shape[:dim], size, *values.shape[dim + 1 :]])
            joined.index_copy_(dim, torch.tensor(row.index), values)
        else:
            joined = values
    assert joined is not None
    layout = piece.rows[0].theirs
    if layout.transposed and joined.dim() > 1:
        joined = joined.transpose(-1, -2)
    return joined if layout.singleton is None else joined.unsqueeze(layout.singleton)


def cached_reader(read: Read) -> Read:
    """A reader that reads a tensor once for several requests in a row."""
    return _Last(read)


class _Last:
    """Reads a tensor once for several requests in a row."""

    def __init__(self, read: Read) -> None:
        self._read, self._held = read, dict[str, Tensor]()

    def __call__(self, name: str) -> Tensor:
        if name not in self._held:
            self._held.clear()
            self._held[name] = self._read(name)
        return self._held[name]


def _in_files(found: Sequence[Piece], shard_bytes: int) -> Iterator[list[Piece]]:
    held: list[Piece] = []
    for piece in found:
        if held and sum(p.nbytes for p in held) + piece.nbytes > shard_bytes:
            yield held
            held = []
        held.append(piece)
    yield held


def _header(file: BinaryIO, held: Sequence[Piece]) -> None:
    content: dict[str, Mapping] = {"__metadata__": {"format": "pt"}}
    end = 0
    for piece in held:
        begin, end = end, end + piece.nbytes
        shape, dtype = list(piece.shape), NAMES[piece.dtype]
        content[piece.name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
