"""The packed form of a weight in few bits: its tensors and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from forge.config.model.tensors import TensorSpec

FP32 = 4
AT_ONCE = 1 << 24
"""Weights rounded, or made again, at a time."""
BLOCK = 64
"""Weights of a row with a shared scale."""


class Part(NamedTuple):
    """A tensor of a packed weight. weights: of a row with a common number; 0 = `width` numbers a
    row, whatever the row's length.
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
"""Parts by format and name. Numbers of 4 bytes are fp32."""


class Kept(NamedTuple):
    """A tensor kept in place of a weight, and the bytes of a number."""

    part: str
    spec: TensorSpec
    bytes: int


def packed_tensors(tensor: TensorSpec, format: str) -> Iterator[Kept]:
    """Yield the tensors kept of a weight [..., in]; their names begin with the weight's."""
    last = len(tensor.shape) - 1
    for name, part in PARTS[format].items():
        width = tensor.shape[-1] // part.weights if part.weights else part.width
        tp = None if tensor.tp == last and not part.weights else tensor.tp
        shape = (*tensor.shape[:-1], width)
        spec = replace(tensor, name=f"{tensor.name}_{name}", shape=shape, tp=tp)
        yield Kept(name, spec, part.bytes)


def packed_bytes(shape: tuple[int, ...], format: str) -> int:
    """Bytes of the packed form of a rank's part of a weight."""
    *rows, columns = shape
    widths = ((p, columns // p.weights if p.weights else p.width) for p in PARTS[format].values())
    return math.prod(rows) * sum(width * part.bytes for part, width in widths)


def made_bytes(shape: tuple[int, ...], width: int, *, by_kernel: bool = False) -> int:
    """Most bytes of a weight made again, with its source tensors. width: of a number.

    by_kernel: whether one kernel makes it, with no tensor between.
    """
    values = math.prod(shape)
    if by_kernel:
        return width * values
    # values of the codes, values times scales, and the sources of the scales
    return width * values + round((2 * FP32 + 10 * FP32 / BLOCK) * min(values, AT_ONCE))
