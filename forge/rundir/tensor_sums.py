"""Checks the bytes of a checkpoint's tensors without torch: the index beside the files has a
checksum of every block.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

from forge.config.regular import open_regular, read_json

INDEX = "tensors.json"
BLOCK = 1 << 24  # bytes with a common checksum: a part of a chunk is checked without the rest


def tensor_damage(folder: Path) -> str | None:
    """The fault of the tensors in a folder, in a sentence, or None.

    All files of tensors are read, a block at a time.
    """
    chunks: dict[str, list[tuple[int, int, str, Any]]] = {}
    try:
        for name, entry in read_json(folder / INDEX)["tensors"].items():
            for chunk in entry["chunks"]:
                sums, start = chunk["crc32"], int(chunk["start"])
                chunks.setdefault(str(chunk["file"]), []).append((start, len(sums), name, sums))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / INDEX} cannot be used: {type(error).__name__}: {error}"
    for file, file_chunks in sorted(chunks.items()):
        try:
            if fault := _fault(folder / file, sorted(file_chunks)):
                return fault
        except OSError as error:
            return f"{folder / file} cannot be read: {error.strerror or error}"
    return None


def _fault(path: Path, chunks: list[tuple[int, int, str, Any]]) -> str | None:
    """The fault of a file with contiguous chunks, or None."""
    with open_regular(path) as file:
        size = file.seek(0, 2)
        ends = [following[0] for _, following in pairwise(chunks)] + [size]
        for (start, _, name, sums), end in zip(chunks, ends, strict=True):
            if max(start, end) > size or -(-(end - start) // BLOCK) != len(sums):
                return f"{path} is torn: bytes of {name!r} are missing"
            file.seek(start)
            for number, crc32 in enumerate(sums):
                remaining = end - start - number * BLOCK
                if zlib.crc32(file.read(min(BLOCK, remaining))) != crc32:
                    message = f"the bytes of {name!r} are not those that were saved"
                    return f"{path} is damaged: {message}"
    return None
