"""The place of each tensor of forge in the files of a family: table rows, read both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.config.model.tensors import TensorSpec

if TYPE_CHECKING:
    from forge.config.model.decoder import Decoder

Rows = Callable[["Decoder", TensorSpec], Sequence[int]]
"""From a layer's section and a tensor of forge: the rows of the stored tensor in forge's tensor, in
order.
"""


@dataclass(frozen=True, kw_only=True)
class FolderTensor:
    """A stored tensor of a Hugging Face file, or part of a stored tensor.

    name: in the file; `{}` in the name stands for the number of an expert, with one stored tensor
    for each expert of forge's stack. transposed: the last two dimensions are swapped. rows: the
    stored rows of forge's tensor, counted along `dim` of forge's tensor; other tensors of forge
    have the other rows, or the order differs. singleton: an extra dimension of size 1 in the file.
    """

    name: str
    transposed: bool = False
    rows: Rows | None = None
    dim: int = 0
    singleton: int | None = None

    @property
    def stacked(self) -> bool:
        return "{}" in self.name


Table = dict[str, "FolderTensor | str"]
"""Names in forge, of the model or inside of a block, and their stored tensors."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tensor of forge with its place in the files. index: the result of `rows`, None = all."""

    ours: TensorSpec
    theirs: FolderTensor
    index: tuple[int, ...] | None

    @property
    def names(self) -> list[str]:
        """Names of the stored tensors behind this row."""
        if not self.theirs.stacked:
            return [self.theirs.name]
        return [self.theirs.name.format(expert) for expert in range(self.ours.shape[0])]


def row(
    layer: Decoder, ours: TensorSpec, theirs: FolderTensor | str, prefix: str, place: str
) -> Row:
    """Build a row. prefix, place: prepended to the names of forge's and of the stored tensor."""
    entry = FolderTensor(name=theirs) if isinstance(theirs, str) else theirs
    index = None if entry.rows is None else tuple(entry.rows(layer, ours))
    spec = replace(ours, name=f"{prefix}{ours.name}")
    return Row(ours=spec, theirs=replace(entry, name=f"{place}{entry.name}"), index=index)


def shapes(rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the stored tensors by name, put together from forge's tensors."""
    widths: dict[str, int] = {}
    for row in rows:
        if row.index is not None:
            widths[row.theirs.name] = widths.get(row.theirs.name, 0) + len(row.index)
    shapes: dict[str, tuple[int, ...]] = {}
    for row in rows:
        shape = list(row.ours.shape)
        if row.index is not None:
            shape[row.theirs.dim] = widths[row.theirs.name]
        if row.theirs.stacked:
            del shape[0]
        if row.theirs.transposed and len(shape) > 1:
            shape[-1], shape[-2] = shape[-2], shape[-1]
        if row.theirs.singleton is not None:
            shape.insert(row.theirs.singleton, 1)
        shapes |= dict.fromkeys(row.names, tuple(shape))
    return shapes


def part(number: int, dim: int = 0) -> Rows:
    """Choose part `number` of equal consecutive parts, counted from 0."""

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        size = ours.shape[dim]
        return range(number * size, (number + 1) * size)

    return rows


def of_queries(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
    """Choose the queries of a projection with rows of queries, keys and values in this order."""
    return range(ours.shape[0])


def of_keys(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
    """Choose the keys of the same projection."""
    begin = layer.n_heads * layer.computed_head_dim
    return range(begin, begin + ours.shape[0])


def of_values(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
    """Choose the values of the same projection."""
    begin = (layer.n_heads + layer.kv_heads) * layer.computed_head_dim
    return range(begin, begin + ours.shape[0])


def every(step: int, first: int, dim: int = 1) -> Rows:
    """Choose each `step`-th row from `first` on."""
    return lambda layer, ours: range(first, ours.shape[dim] * step, step)


def halves_of_pairs(heads: int, rotated: int, *, first: bool = False) -> Rows:
    """Reorder rotated pairs (2i, 2i + 1) of the file into forge's places (i, i + width/2).

    Only the last `rotated` rows of each head are reordered; with `first` the first.
    """

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        width = ours.shape[0] // heads
        begin = 0 if first else width - rotated
        end = begin + rotated
        pairs = [*range(begin, end, 2), *range(begin + 1, end, 2)]
        order = [*range(begin), *pairs, *range(end, width)]
        return [head * width + i for head in range(heads) for i in order]

    return rows
