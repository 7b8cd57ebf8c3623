"""Safetensors files of a folder, written tensor by tensor from ours."""

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
"""The whole tensor of a name of ours, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One tensor of theirs: the rows of ours that it is made of; of a stack, the number in it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: tuple[Row, ...]
    number: int | None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def pieces(rows: Sequence[Row], dtype: torch.dtype) -> list[Piece]:
    """Every tensor of theirs in the order of ours. Buffers stay in fp32."""
    sizes, joined = shapes(rows), dict[str, list[tuple[Row, int | None]]]()
    for row in rows:
        for number, name in enumerate(row.names):
            joined.setdefault(name, []).append((row, number if row.theirs.stacked else None))
    return [
        Piece(
            name=name,
            shape=sizes[name],
            dtype=torch.float32 if found[0][0].ours.role == "buffer" else dtype,
            rows=tuple(row for row, _ in found),
            number=found[0][1],
        )
        for name, found in joined.items()
    ]


def write_weights(
    folder: Path, rows: Sequence[Row], read: Read, *, dtype: torch.dtype, shard_bytes: int
) -> list[str]:
    """Write the tensors of theirs into files of at most shard_bytes, but for a larger tensor, and
    with several files their index; returns the names of the files.

    No more than one tensor of theirs, and what of ours makes it up, is in memory.
    """
    files = list(_in_files(pieces(rows, dtype), shard_bytes))
    kept = _Last(read)
    width = f"{len(files):05d}"
    names = [f"model-{n:05d}-of-{width}.safetensors" for n in range(1, len(files) + 1)]
    names = [SINGLE] if len(files) == 1 else names
    for name, held in zip(names, files, strict=True):
        with (folder / name).open("wb") as file:
            _header(file, held)
            for piece in held:
                values = theirs(piece, kept).to(piece.dtype).contiguous()
                assert tuple(values.shape) == piece.shape, piece.name
                file.write(values.view(-1).view(torch.uint8).numpy().data)
    if len(files) > 1:
        places = {p.name: name for name, held in zip(names, files, strict=True) for p in held}
        total = sum(piece.nbytes for held in files for piece in held)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return names


def theirs(piece: Piece, read: Read) -> Tensor:
    """The values of a tensor of theirs."""
    found: Tensor | None = None
    for row in piece.rows:
        ours = read(row.ours.name)
        values = ours if piece.number is None else ours[piece.number]
        if row.index is not None:
            dim = row.theirs.dim - int(row.theirs.stacked)
            if found is None:
                size = sum(len(one.index or ()) for one in piece.rows)
                found = values.new_empty([*values.shape[:dim], size, *values.shape[dim + 1 :]])
            found.index_copy_(dim, torch.tensor(row.index), values)
        else:
            found = values
    assert found is not None
    place = piece.rows[0].theirs
    if place.transposed and found.dim() > 1:
        found = found.transpose(-1, -2)
    return found if place.singleton is None else found.unsqueeze(place.singleton)


class _Last:
    """Reads a tensor once, where it is asked for several times in a row."""

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
        if held and sum(one.nbytes for one in held) + piece.nbytes > shard_bytes:
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
