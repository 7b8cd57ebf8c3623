"""Tensors in a folder without a pickle: what to give torch.distributed.checkpoint, and what a
folder holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forge.training import tensor_index
from forge.training.tensor_index import BLOCK, INDEX, LEAST

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from forge.training.tensor_storage import StagedPlanner, TensorReader, TensorWriter


def writer(folder: Path) -> TensorWriter:
    """For dcp.save, once: saves tensors into a new folder; the index, tensors.json, is written
    last.
    """
    from forge.training.tensor_storage import TensorWriter

    return TensorWriter(folder)


def planner(copies: dict[str, Tensor]) -> StagedPlanner:
    """For dcp.save with `writer`: what is written of each tensor is its copy, by name, of what this
    rank holds.
    """
    from forge.training.tensor_storage import StagedPlanner

    return StagedPlanner(copies)


def reader(folder: Path) -> TensorReader:
    """For dcp.load: reads what `writer` saved, on any number of ranks."""
    from forge.training.tensor_storage import TensorReader

    return TensorReader(folder)


def stored(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Sizes and dtypes by name, without reading tensors. Raises OSError or ValueError, in one line,
    when it cannot say.
    """
    from forge.training.tensor_storage import described

    return described(tensor_index.read(folder))


def fault(folder: Path) -> str | None:
    """Why a folder cannot be loaded, in one line, or None; damage inside of tensors shows only when
    they are read.
    """
    try:
        lengths = tensor_index.needed(tensor_index.read(folder))
        for name, length in lengths.items():
            path = folder / name
            if not path.is_file():
                return f"{path} is missing"
            if (size := path.stat().st_size) < length:
                return f"{path} is torn: it has {size} bytes of {length}"
    except FileNotFoundError:
        return f"{folder / INDEX} is missing"
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return str(error)
    return None


def size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes that a save of these tensors takes at most, over all ranks: theirs, and those of the
    index and of half-filled blocks.
    """
    total = 2 * _BLOCK
    ranks = 1
    for name, tensor in tensors.items():
        mesh = getattr(tensor, "device_mesh", None)
        parts = mesh.size() if mesh is not None else 1
        ranks = max(ranks, parts)
        length = tensor.numel() * tensor.element_size()
        total += (
            length
            + length // BLOCK * _SUM
            + len(json.dumps(name))
            + parts * (_CHUNK + 2 * _NUMBER * tensor.dim())
        )
    return total + (ranks + total // LEAST) * _BLOCK


_BLOCK = 4096
_CHUNK, _NUMBER, _SUM = (
    256,
    22,
    12,
    # bytes of JSON that a chunk takes besides its numbers, and that a number or a checksum takes at
    # most
)


@contextmanager
def causes() -> Iterator[None]:
    """Raise what made a save or a load fail, in place of DCP's CheckpointException, which is no
    Exception and passes by all handlers.

    An OSError stays one, and so does what is no fault of the data: an interrupt, an exit, too
    little memory. Anything else becomes a ValueError in one line. Of several ranks that failed, the
    first one speaks.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        if not isinstance(cause, Exception) or isinstance(
            cause, OSError | MemoryError | torch.OutOfMemoryError
        ):
            raise cause from error
        reason = " ".join(str(cause).split())
        raise ValueError(
            reason if isinstance(cause, ValueError) else f"{type(cause).__name__}: {reason}"
        ) from error
