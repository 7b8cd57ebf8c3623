"""Numbers rounded to few bits and returned as numbers, with the values in a kernel's product.

Each function takes values with the last dimension summed up in a product, and returns values of the
same shape in fp32, or fp64 for fp64. runs: the first dimension of [rows, n] is summed up instead,
separately in each run of rows, as for rows of experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# registers the collectives that the compiler traces
import torch.distributed._functional_collectives
import torch.nn.functional as F
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LEAST = 1e-12
"""The least largest value behind a scale, as in torchao."""
BLOCK = 32
"""Numbers with a shared scale in MX formats."""


class Spread(NamedTuple):
    """Values that ranks of a group have parts of. summed: whether the last dimension is cut."""

    group: str
    summed: bool


class Runs(NamedTuple):
    """Runs of rows. of_row: [rows] int64, the run of each row; counts: [runs] int64."""

    of_row: Tensor
    counts: Tensor


def largest_of(values: Tensor, group: str) -> Tensor:
    """The largest values of all ranks of a group, element by element."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(values.contiguous(), "max", group))


def in_sum_format(values: Tensor) -> Tensor:
    """Convert values to the numbers of emulated sums."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def fp8_of_tensor(
    values: Tensor,
    runs: Runs | None = None,
    spread: Spread | None = None,
    *,
    dtype: torch.dtype,
    power: bool = False,
) -> Tensor:
    """Round to fp8 with one scale for the tensor. power: the scale is a power of two."""
    largest = values.abs().max()
    scale = _scale(largest_of(largest, spread.group) if spread else largest, dtype)
    return _scaled(values, _power(scale) if power else scale, dtype)


def fp8_of_rows(
    values: Tensor,
    runs: Runs | None = None,
    spread: Spread | None = None,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Round to fp8 with a scale for each row, a power of two."""
    largest = _largest(values, runs)
    if spread and spread.summed:
        largest = largest_of(largest, spread.group)
    return _scaled(values, _power(_scale(largest, dtype)), dtype)


def int8_of_rows(values: Tensor, runs: Runs | None = None) -> Tensor:
    """Round to integers from -127 to 127 with a scale for each row, in the type of the values."""
    scale = _largest(values, runs) / 127
    codes = (values.float() * (1.0 / scale.float().clip(LEAST))).round().clip(-128, 127)
    return in_sum_format(codes.to(values.dtype)) * in_sum_format(scale)


def mxfp8(values: Tensor, runs: Runs | None = None) -> Tensor:
    """Round to MXFP8 in E4M3: a power of two for each 32 numbers, the least without saturation.

    Runs have a multiple of 32 rows.
    """
    if runs is not None:
        return mxfp8(values.mT).mT
    length = values.shape[-1]
    blocks = F.pad(values.float(), (0, -length % BLOCK)).unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.ceil(torch.log2(largest / torch.finfo(E4M3).max)).clamp(-127, 127)
    codes = _saturated(blocks * torch.exp2(-exponent), E4M3)
    rounded = in_sum_format(codes.to(values.dtype)) * in_sum_format(
        torch.exp2(exponent).to(values.dtype)
    )
    return rounded.flatten(-2)[..., :length]


def _largest(values: Tensor, runs: Runs | None) -> Tensor:
    """Return the largest absolute value of each row, or of each column in a run."""
    if runs is None:
        return values.abs().amax(-1, keepdim=True)
    zeros = values.new_zeros(len(runs.counts), values.shape[1])
    index = runs.of_row.unsqueeze(1).expand_as(values)
    return zeros.scatter_reduce(0, index, values.abs(), "amax")[runs.of_row]


def _scale(largest: Tensor, dtype: torch.dtype) -> Tensor:
    return (torch.finfo(dtype).max / largest.double().clamp(min=LEAST)).float()


def _power(scale: Tensor) -> Tensor:
    return torch.exp2(torch.floor(torch.log2(scale)))


def _scaled(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    codes = _saturated(values.float() * scale, dtype)
    kind = torch.promote_types(values.dtype, torch.float32)
    return codes.to(kind) / scale.to(kind)


def _saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Clamp before the cast: torch 2.11 turns larger numbers into NaN."""
    most = torch.finfo(dtype).max
    return values.clamp(-most, most).to(dtype)
