"""Plain tensors stored as codes and scales, and the reading of their parts with numpy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from forge.config.regular import open_regular
from forge.families.shards import AGAIN, FolderError, Stored

AT_ONCE = 1 << 20
"""Values decoded at once, so that intermediates stay small beside a shard."""
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "u1"}
NUMPY |= {"I8": "i1", "U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
NUMPY |= {"F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1"}
"""Stored formats as numpy reads them; those that numpy lacks as their bits."""


@dataclass(frozen=True, kw_only=True)
class Coded(Stored):
    """A plain tensor [rows, ...] made of stored parts, and read as fp32.

    parts: the stored tensors by their meaning. shape: of the plain tensor. file, start: those of
    the codes.
    """

    parts: Mapping[str, Stored] = field(hash=False)

    def rows(self, first: int, last: int) -> np.ndarray:
        """Values of rows [first, last) in fp32, decoded some rows at a time."""
        values = np.empty((last - first, *self.shape[1:]), np.float32)
        step = max(1, AT_ONCE // max(1, prod(self.shape[1:])))
        for begin in range(first, last, step):
            end = min(begin + step, last)
            values[begin - first : end - first] = self.decode(begin, end)
        return values

    def decode(self, first: int, last: int) -> np.ndarray:
        """Values of a few rows in fp32."""
        raise NotImplementedError


def read_codes(stored: Stored, first: int = 0, last: int | None = None) -> np.ndarray:
    """Rows [first, last) of a stored tensor, in its stored format; a scalar has one row."""
    shape = stored.shape or (1,)
    last = shape[0] if last is None else last
    values = np.empty((last - first, *shape[1:]), NUMPY[stored.dtype])
    content = values.reshape(-1).view(np.uint8).data
    with open_regular(stored.file) as file:
        file.seek(stored.start + first * (prod(shape[1:]) * values.itemsize))
        if file.readinto(content) < len(content):
            raise FolderError(f"{stored.file} is torn: it ends before its last tensor", AGAIN)
    return values


def read_numbers(stored: Stored, first: int = 0, last: int | None = None) -> np.ndarray:
    """Rows of a stored tensor of numbers, in fp32."""
    values = read_codes(stored, first, last)
    if stored.dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    if stored.dtype == "F8_E4M3":
        return e4m3()[values]
    if stored.dtype == "F8_E5M2":
        return (values.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    if stored.dtype == "F8_E8M0":
        return powers_of_two(values)
    return values.astype(np.float32)


@functools.cache
def e4m3() -> np.ndarray:
    """The 256 values of FP8 E4M3 without infinities: https://arxiv.org/abs/2209.05433."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent > 0, normal, np.ldexp(mantissa / 8, -6))
    values[codes & 127 == 127] = np.nan
    return np.where(codes < 128, values, -values).astype(np.float32)


@functools.cache
def e2m1_pairs() -> np.ndarray:
    """The two values of each byte of FP4 E2M1, the low four bits first: [256, 2]."""
    positive = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([positive, -positive])
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=1)


def powers_of_two(exponents: np.ndarray) -> np.ndarray:
    """Scales of format E8M0: 2 ** (byte - 127)."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)


def nibbles(packed: np.ndarray, bits: int) -> np.ndarray:
    """Codes of int32 words along the last dimension, the low bits first, as int32."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = packed.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return codes.astype(np.int32).reshape(*packed.shape[:-1], -1)


def spread_scales(
    stored: Stored, shape: tuple[int, ...], first: int, last: int, block
) -> np.ndarray:
    """Scales of rows [first, last) of a tensor, in a shape that broadcasts over these rows.

    stored: a scalar, a number a row, or a grid with a number for each block. block: sizes of a
    block along the last dimensions; blocks at the edges may be cut.
    """
    block = (1,) * (len(shape) - len(block)) + tuple(block)
    grid = stored.shape or (1,)
    if prod(grid) == 1:
        return read_numbers(stored).reshape((1,) * len(shape))
    grid += (1,) * (len(shape) - len(grid))
    if grid[0] == 1:
        scales = read_numbers(stored).reshape(grid)
    elif grid[0] == shape[0]:
        scales = read_numbers(stored, first, last).reshape(-1, *grid[1:])
    else:
        begin, end = first // block[0], (last - 1) // block[0] + 1
        in_blocks = read_numbers(stored, begin, end).reshape(-1, *grid[1:])
        scales = in_blocks[np.arange(first, last) // block[0] - begin]
    for dim in range(1, len(shape)):
        if grid[dim] not in (1, shape[dim]):
            scales = np.repeat(scales, block[dim], axis=dim)
            scales = scales[(slice(None),) * dim + (slice(shape[dim]),)]
    return scales


def fits_grid(grid: tuple[int, ...], shape: tuple[int, ...], block) -> bool:
    """Whether scales of this shape cover a tensor, as `spread_scales` reads them."""
    if prod(grid) == 1:
        return True
    block = (1,) * (len(shape) - len(block)) + tuple(block)
    sizes = grid + (1,) * (len(shape) - len(grid))
    return len(sizes) == len(shape) and all(
        size in (1, width, -(-width // step))
        for size, width, step in zip(sizes, shape, block, strict=True)
    )
