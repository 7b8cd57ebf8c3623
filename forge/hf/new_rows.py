"""Rows of a table of tokens that pretrained weights do not have: the mean of those they have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from forge.config.model.tensors import TensorSpec


def are_new(one: TensorSpec, rows: Tensor, stored: int) -> Tensor:
    """Which of these rows of a table are not among the stored ones, or are new there."""
    first, end = one.new
    return (rows >= stored) | ((rows >= first) & (rows < end))


def filled(one: TensorSpec, rows: Tensor, stored: Tensor) -> Tensor:
    """Rows of a table, of which the new ones are the mean of the stored rows before them. stored:
    all of them, of any columns.
    """
    new = are_new(one, rows, len(stored))
    known = stored[: one.new[0] or None]
    mean = known.mean(0, dtype=torch.promote_types(stored.dtype, torch.float32))
    values = stored[rows.clamp(max=len(stored) - 1)]
    values[new] = mean.to(stored.dtype)
    return values


def widening(read: Callable[[str], Tensor], specs: Iterable[TensorSpec]) -> Callable[[str], Tensor]:
    """Read tensors by our names, with the new rows of the tables that have some."""
    tables = {one.name: one for one in specs if one.new[1]}

    def widened(name: str) -> Tensor:
        values, one = read(name), tables.get(name)
        if one is None or not one.takes(tuple(values.shape)):
            return values
        return filled(one, torch.arange(one.shape[0]), values)

    return widened


class Widened(Mapping[str, Tensor]):
    """Tensors by our names, with the new rows of the tables that have some."""

    def __init__(self, tensors: Mapping[str, Tensor], specs: Iterable[TensorSpec]) -> None:
        self.tensors = tensors
        self._read = widening(tensors.__getitem__, specs)

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)
