"""What is kept of a weight in few bits: the tensors, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from forge.config.model.tensors import TensorSpec

FP32 = 4
AT_ONCE = 1 << 24
"""Weights that are rounded, or made again, at a time."""
BLOCK = 64
"""Weights of a row that share a scale."""


class Part(NamedTuple):
    """weights: of a row that share one number of it; 0 = `width` numbers a row, whatever its
    length.
    """

    weights: int
    width: int
    bytes: int


PARTS = {
    "nf4": {"codes": Part(2, 1, 1), "scales": Part(BLOCK, 1, 4)},
    "nf4_double": {
        "codes": Part(2, 1, 1),
        "scale_codes": Part(BLOCK, 1, 1),
        "row_scales": Part(0, 2, 4),
    },
    "int8": {"codes": Part(1, 1, 1), "row_scales": Part(0, 1, 4)},
}
"""By format and name. Numbers of 4 bytes are fp32."""


class Kept(NamedTuple):
    """One tensor that is kept in place of a weight, and the bytes of its numbers."""

    part: str
    spec: TensorSpec
    bytes: int


def kept(one: TensorSpec, how: str) -> Iterator[Kept]:
    """The tensors that are kept of a weight [..., in], with names that begin with its own."""
    last = len(one.shape) - 1
    for name, part in PARTS[how].items():
        width = one.shape[-1] // part.weights if part.weights else part.width
        tp = None if one.tp == last and not part.weights else one.tp
        shape = (*one.shape[:-1], width)
        spec = replace(one, name=f"{one.name}_{name}", shape=shape, tp=tp)
        yield Kept(name, spec, part.bytes)


def packed_bytes(shape: tuple[int, ...], how: str) -> int:
    """Of what is kept of a rank's part of a weight."""
    *rows, into = shape
    widths = ((p, into // p.weights if p.weights else p.width) for p in PARTS[how].values())
    return math.prod(rows) * sum(width * part.bytes for part, width in widths)


def made_bytes(shape: tuple[int, ...], width: int) -> int:
    """Most bytes of a weight that is made again, and of what it is made of. width: of a number."""
    values = math.prod(shape)
    # what codes stand for, that times its scales, and what these are made of
    return width * values + round((2 * FP32 + 10 * FP32 / BLOCK) * min(values, AT_ONCE))
