"""Whether all bytes of a checkpoint's tensors are those that were saved."""

from __future__ import annotations

from math import prod
from pathlib import Path

from forge.training.tensor_storage import blocks_of, bytes_of, read_index


def damage(folder: Path) -> str | None:
    """What is wrong with the tensors in a folder, in one sentence, or None; all of them are read, a
    block at a time.
    """
    try:
        index = read_index(folder)
        for place, chunk in index.storage_data.items():
            dtype = index.state_dict_metadata[place.fqn].properties.dtype  # type: ignore[union-attr]
            nbytes, file = prod(chunk.sizes) * dtype.itemsize, folder / chunk.file
            for block in blocks_of(nbytes):
                bytes_of(file, place.fqn, chunk, nbytes, block)
    except (OSError, ValueError) as error:
        return str(error)
    return None
