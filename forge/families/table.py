"""Where each of our tensors is in the files of a family: rows of a table, read both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.config.model.tensors import TensorSpec

if TYPE_CHECKING:
    from forge.config.model.decoder import Decoder

Rows = Callable[["Decoder", TensorSpec], Sequence[int]]
"""Of the section of a layer and one of its tensors: the rows of theirs that ours has, in order."""


@dataclass(frozen=True, kw_only=True)
class Theirs:
    """One tensor of theirs, or part of one.

    name: in their files; with `{}` in it, one tensor for each expert of our stack. transposed: the
    last two dimensions are the other way round. rows: those of ours among theirs, counted along
    `dim` of ours, where others of ours have the rest; or in another order. singleton: a dimension
    of size 1 that theirs has besides.
    """

    name: str
    transposed: bool = False
    rows: Rows | None = None
    dim: int = 0
    singleton: int | None = None

    @property
    def stacked(self) -> bool:
        return "{}" in self.name


Table = dict[str, "Theirs | str"]
"""Our name, of the model or inside of a block, and theirs."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A tensor of ours with its place in their files. index: what `rows` names, None = all."""

    ours: TensorSpec
    theirs: Theirs
    index: tuple[int, ...] | None

    @property
    def names(self) -> list[str]:
        """Of their tensors that it needs."""
        if not self.theirs.stacked:
            return [self.theirs.name]
        return [self.theirs.name.format(expert) for expert in range(self.ours.shape[0])]


def row(layer: Decoder, ours: TensorSpec, theirs: Theirs | str, prefix: str, place: str) -> Row:
    """prefix, place: what stands before the names of ours and theirs."""
    found = Theirs(name=theirs) if isinstance(theirs, str) else theirs
    index = None if found.rows is None else tuple(found.rows(layer, ours))
    named = replace(ours, name=f"{prefix}{ours.name}")
    return Row(ours=named, theirs=replace(found, name=f"{place}{found.name}"), index=index)


def shapes(rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Their tensors by name, with the shapes that these of ours make up."""
    wide: dict[str, int] = {}
    for one in rows:
        if one.index is not None:
            wide[one.theirs.name] = wide.get(one.theirs.name, 0) + len(one.index)
    found: dict[str, tuple[int, ...]] = {}
    for one in rows:
        shape = list(one.ours.shape)
        if one.index is not None:
            shape[one.theirs.dim] = wide[one.theirs.name]
        if one.theirs.stacked:
            del shape[0]
        if one.theirs.transposed and len(shape) > 1:
            shape[-1], shape[-2] = shape[-2], shape[-1]
        if one.theirs.singleton is not None:
            shape.insert(one.theirs.singleton, 1)
        found |= dict.fromkeys(one.names, tuple(shape))
    return found


def part(number: int, dim: int = 0) -> Rows:
    """One of equal parts, which follow each other; counted from 0."""

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        size = ours.shape[dim]
        return range(number * size, (number + 1) * size)

    return rows


def every(step: int, first: int, dim: int = 1) -> Rows:
    """Each `step`-th row from the first on."""
    return lambda layer, ours: range(first, ours.shape[dim] * step, step)


def halves_of_pairs(heads: int, rotated: int) -> Rows:
    """Rotated pairs (2i, 2i + 1) of theirs in our places (i, i + width/2): the last `rotated` rows
    of each head.
    """

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        width = ours.shape[0] // heads
        still = width - rotated
        order = [*range(still), *range(still, width, 2), *range(still + 1, width, 2)]
        return [head * width + place for head in range(heads) for place in order]

    return rows
