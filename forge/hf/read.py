"""Weights of a folder into tensors laid out over ranks, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from forge.adapters.packed import Packed
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, HEAD
from forge.config.problems import listed
from forge.config.regular import open_regular
from forge.families import folder as folders
from forge.families.formats.coded import Coded
from forge.families.shards import AGAIN, FolderError, Stored
from forge.families.table import Row
from forge.hf.new_rows import are_new, filled
from forge.tensors.local import local, owned

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def load_folder(
    path: Path,
    section: Decoder,
    tensors: Mapping[str, Tensor],
    exclude: Sequence[str] = (),
    packed: Sequence[Packed] = (),
) -> None:
    """Fill the tensors of a model, or this rank's shards, in place.

    A rank reads only its rows and no more than one tensor at a time. tensors: by their names in the
    model, of the whole model or of a stage. Parameters with names below a prefix of `exclude` keep
    their values. packed: weights in few bits. Raises FolderError for unreadable or misfitting
    files.
    """
    folder = folders.read_folder(path)
    if faults := folders.weight_faults(folder, section, exclude):
        message = f"{path} does not fit this model: {listed(faults)}"
        hint = f"model=hf model.path={path}, or checkpoint.exclude_from_loading"
        raise FolderError(message, hint)
    rows, files = folders.stored_rows(folder, section)
    in_few_bits = {matrix.name: matrix for matrix in packed}
    for row in rows:
        if row.ours.name.startswith(tuple(exclude)):
            continue
        if (target := tensors.get(row.ours.name)) is not None:
            _fill(target, row, files)
        elif matrix := in_few_bits.get(row.ours.name):
            matrix.fill(partial(_read_rows, row, files))


def read_tensor(row: Row, files: Mapping[str, Stored]) -> Tensor:
    """Return a whole tensor of forge, in the format of the files."""
    values = torch.empty(row.ours.shape, dtype=DTYPES[files[row.names[0]].dtype])
    _fill(values, row, files)
    return values


def _fill(target: Tensor, row: Row, files: Mapping[str, Stored]) -> None:
    indices, local_values = owned(target), local(target)
    if not row.theirs.stacked:
        local_values.copy_(_read(files[row.theirs.name], row, indices))
        return
    for i, expert in enumerate(indices[0].tolist()):
        local_values[i].copy_(_read(files[row.names[expert]], row, indices[1:]))


def _read_rows(row: Row, files: Mapping[str, Stored], indices: Sequence[Tensor]) -> Tensor:
    """Return whole rows of a tensor; of a stack of experts, the rows of one expert."""
    mine = [*indices, torch.arange(row.ours.shape[-1])]
    if not row.theirs.stacked:
        return _read(files[row.theirs.name], row, mine)
    (expert,) = mine[0].tolist()
    return _read(files[row.names[expert]], row, mine[1:])


def _read(stored: Stored, row: Row, mine: Sequence[Tensor]) -> Tensor:
    """Return a part of a stored tensor, in forge's layout.

    mine: the indices along each remaining dimension of forge's tensor.
    """
    if row.ours.role in (EMBEDDING, HEAD) and len(row.ours.shape) == 2:
        rows, columns = mine
        if bool(are_new(row.ours, rows, stored.shape[0]).any()):
            every_row = torch.arange(stored.shape[0])
            return filled(row.ours, rows, read_part(stored, [every_row, columns]))
    indices = list(mine)
    if row.index is not None:
        dim = row.theirs.dim - int(row.theirs.stacked)
        indices[dim] = torch.tensor(row.index)[indices[dim]]
    swapped = row.theirs.transposed and len(indices) > 1
    if swapped:
        indices[-1], indices[-2] = indices[-2], indices[-1]
    if row.theirs.singleton is not None:
        indices.insert(row.theirs.singleton, torch.zeros(1, dtype=torch.int64))
    values = read_part(stored, indices)
    if row.theirs.singleton is not None:
        values = values.squeeze(row.theirs.singleton)
    return values.transpose(-1, -2) if swapped else values


def read_part(stored: Stored, wanted: Sequence[Tensor]) -> Tensor:
    """Return the values of a stored tensor at these indices along each dimension.

    Of the file only the rows between the first and the last index are read.
    """
    shape = stored.shape
    if not all(len(index) for index in wanted):
        return torch.empty([len(index) for index in wanted], dtype=DTYPES[stored.dtype])
    first, last = int(wanted[0].min()), int(wanted[0].max())
    rows = _rows(stored, first, last + 1)
    index = wanted[0] - first
    if len(index) != len(rows) or not torch.equal(index, torch.arange(len(rows))):
        rows = rows.index_select(0, index)
    for dim, index in enumerate(wanted[1:], start=1):
        if len(index) != shape[dim] or not torch.equal(index, torch.arange(shape[dim])):
            rows = rows.index_select(dim, index)
    return rows


def _rows(stored: Stored, first: int, last: int) -> Tensor:
    """Return rows of the first dimension, in the stored format; those in codes in fp32."""
    if isinstance(stored, Coded):
        return torch.from_numpy(stored.rows(first, last))
    values = torch.empty((last - first, *stored.shape[1:]), dtype=DTYPES[stored.dtype])
    row = values.element_size() * (values.numel() // (last - first))
    content = values.view(-1).view(torch.uint8).numpy().data
    with open_regular(stored.file) as file:
        file.seek(stored.start + first * row)
        if file.readinto(content) < len(content):
            raise FolderError(f"{stored.file} is torn: it ends before its last tensor", AGAIN)
    return values
