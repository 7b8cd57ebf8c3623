"""Token rows missing in pretrained weights, filled with the mean of the stored rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from forge.config.model.tensors import TensorSpec


def are_new(one: TensorSpec, rows: Tensor, stored: int) -> Tensor:
    """Return a mask of the rows of a table beyond the stored rows, or among its new rows."""
    first, end = one.new
    return (rows >= stored) | ((rows >= first) & (rows < end))


def filled(one: TensorSpec, rows: Tensor, stored: Tensor) -> Tensor:
    """Return rows of a table, with new rows as the mean of the stored rows before them.

    stored: all stored rows, with any columns.
    """
    new = are_new(one, rows, len(stored))
    pretrained = stored[: one.new[0] or None]
    mean = pretrained.mean(0, dtype=torch.promote_types(stored.dtype, torch.float32))
    values = stored[rows.clamp(max=len(stored) - 1)]
    values[new] = mean.to(stored.dtype)
    return values


def widening(read: Callable[[str], Tensor], specs: Iterable[TensorSpec]) -> Callable[[str], Tensor]:
    """Return a reader of tensors by forge's names, with new rows in the tables that have some."""
    tables = {spec.name: spec for spec in specs if spec.new[1]}

    def widened(name: str) -> Tensor:
        values, spec = read(name), tables.get(name)
        if spec is None or not spec.takes(tuple(values.shape)):
            return values
        return filled(spec, torch.arange(spec.shape[0]), values)

    return widened


class Widened(Mapping[str, Tensor]):
    """Tensors by forge's names, with new rows in the tables that have some."""

    def __init__(self, tensors: Mapping[str, Tensor], specs: Iterable[TensorSpec]) -> None:
        self.tensors = tensors
        self._read = widening(tensors.__getitem__, specs)

    def __getitem__(self, name: str) -> Tensor:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)
