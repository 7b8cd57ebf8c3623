"""Weights in few bits for a base under adapters: packed by whole rows, and unpacked.

A weight is [..., out, in]. Every row is rounded by itself, with the same values in any cut into
rows. A packed weight is several tensors, by the names of `forge.config.adapters.packed`.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.adapters.packed import AT_ONCE, BLOCK, PARTS
from forge.tensors.triton_kernels import triton_works

Parts = Mapping[str, Tensor]
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The values of 4-bit NormalFloat (QLoRA, arXiv:2305.14314, appendix E)."""
BLOCKS_AT_ONCE = 32
"""Blocks of a program of the kernel: 16 values of each thread of four warps."""
LEAST = 1e-38
"""Divisor of a block of zeros."""


class Format(NamedTuple):
    """A packed format.

    pack: [rows, in] fp32 -> parts, each [rows, ...]. unpack: parts -> [rows, in] fp32.
    """

    pack: Callable[[Tensor], dict[str, Tensor]]
    unpack: Callable[[Parts], Tensor]


def pack_weight(weight: Tensor, how: str) -> dict[str, Tensor]:
    """Pack a weight [..., in] into tensors, each [..., n].

    how: a name of FORMATS. A limited number of rows is in fp32 at a time.
    """
    rows = weight.flatten(0, -2)
    n_rows = max(1, AT_ONCE // max(1, rows.shape[1]))
    chunks = [FORMATS[how].pack(part.float()) for part in rows.split(n_rows)]
    joined = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return {name: part.unflatten(0, weight.shape[:-1]) for name, part in joined.items()}


def unpack(parts: Parts, how: str, dtype: torch.dtype) -> Tensor:
    """Restore the weight [..., in] from packed parts."""
    flat = {name: part.flatten(0, -2) for name, part in parts.items()}
    codes = parts["codes"]
    width = codes.shape[-1] * _in_a_code(how)
    weight = torch.empty(*codes.shape[:-1], width, dtype=dtype, device=codes.device)
    by_kernel = codes.is_cuda and how != "int8" and dtype != torch.float64
    if by_kernel and weight.numel() and triton_works():
        unpack_by_kernel(flat, weight)
        return weight
    rows = weight.view(-1, width)
    n_rows = max(1, AT_ONCE // max(1, width))
    for start in range(0, len(rows), n_rows):
        chunk = {name: part[start : start + n_rows] for name, part in flat.items()}
        rows[start : start + n_rows] = FORMATS[how].unpack(chunk)
    return weight


def unpack_by_kernel(parts: Parts, weight: Tensor) -> None:
    """Unpack 4-bit NormalFloat into a weight by one kernel, with the bits of `Format.unpack`: a
    tenth of the bytes of its operators, and none between.
    """
    kernels: Any = importlib.import_module("forge.adapters.unpack_triton")
    blocks, device = weight.numel() // BLOCK, weight.device
    double = "row_scales" in parts
    kernels.unpack_nf4[(math.ceil(blocks / BLOCKS_AT_ONCE),)](
        parts["codes"].contiguous(),
        parts["scale_codes" if double else "scales"].contiguous(),
        parts["row_scales"].contiguous() if double else None,
        _nf4_table(device),
        _dynamic_table(device) if double else None,
        weight,
        blocks,
        weight.shape[-1] // BLOCK,
        BLOCK=BLOCK,
        BLOCKS=BLOCKS_AT_ONCE,
        enable_fp_fusion=False,  # a fused product and sum would have other bits
    )


@torch.library.custom_op(
    "forge::unpack",
    mutates_args=(),
    schema="(Tensor[] parts, str how, ScalarType to, Tensor after) -> Tensor",
)
def _unpacked(parts: list[Tensor], how: str, to: torch.dtype, after: Tensor) -> Tensor:
    """Unpack as an operator, opaque to a compiler: lookup tables are separate tensors."""
    return unpack(dict(zip(PARTS[how], parts, strict=True)), how, to)


@_unpacked.register_fake
def _(parts: list[Tensor], how: str, to: torch.dtype, after: Tensor) -> Tensor:
    codes = parts[0]
    return codes.new_empty((*codes.shape[:-1], codes.shape[-1] * _in_a_code(how)), dtype=to)


def unpack_weight(
    how: str, parts: Sequence[Tensor], dtype: torch.dtype, after: Tensor | None = None
) -> Tensor:
    """Return the weight [..., out, in] without gradients. parts: in the order of PARTS.

    after: a tensor that the compiler must have before it unpacks; the input of the product or the
    gradient. Else it unpacks once for both passes, and the weights of all blocks wait in 16 bits.
    """
    return _unpacked(list(parts), how, dtype, parts[0] if after is None else after)


def _in_a_code(how: str) -> int:
    return PARTS[how]["codes"].weights


def _nf4(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes, two in a byte, and the scale of each block."""
    blocks = rows.unflatten(-1, (-1, BLOCK))
    scales = blocks.abs().amax(-1)
    parts = (blocks * (1.0 / scales.clamp(min=LEAST)).unsqueeze(-1)).clamp(-1, 1).flatten(-2)
    codes = torch.bucketize(parts, _borders(NF4, rows.device), out_int32=True).to(torch.uint8)
    return (codes[..., ::2] << 4) | codes[..., 1::2], scales


def _of_nf4(codes: Tensor, scales: Tensor) -> Tensor:
    values = F.embedding(codes.int(), _pairs(codes.device)).flatten(-2)
    return (values.unflatten(-1, (-1, BLOCK)) * scales.unsqueeze(-1)).flatten(-2)


def _pack_nf4(rows: Tensor) -> dict[str, Tensor]:
    codes, scales = _nf4(rows)
    return {"codes": codes, "scales": scales}


def _pack_nf4_double(rows: Tensor) -> dict[str, Tensor]:
    """Pack the scales of a row, less their mean, in 8 bits with a scale for the row."""
    codes, scales = _nf4(rows)
    mean = scales.double().mean(-1, keepdim=True).float()  # equal for any number of rows
    centered = scales - mean
    largest = centered.abs().amax(-1, keepdim=True)
    parts = (centered * (1.0 / largest.clamp(min=LEAST))).clamp(-1, 1)
    of_scales = torch.bucketize(parts, _borders(dynamic(), rows.device), out_int32=True)
    return {
        "codes": codes,
        "scale_codes": of_scales.to(torch.uint8),
        "row_scales": torch.cat([largest, mean], -1),
    }


def _unpack_nf4_double(parts: Parts) -> Tensor:
    largest, mean = parts["row_scales"].split(1, -1)
    scales = _dynamic_table(mean.device)[parts["scale_codes"].int()] * largest + mean
    return _of_nf4(parts["codes"], scales)


def _pack_int8(rows: Tensor) -> dict[str, Tensor]:
    """Pack like the weights of LLM.int8() (arXiv:2208.07339)."""
    largest = rows.abs().amax(-1, keepdim=True)
    codes = (rows * (127.0 / largest.clamp(min=LEAST))).round().to(torch.int8)
    return {"codes": codes, "row_scales": largest}


FORMATS = {
    "nf4": Format(_pack_nf4, lambda parts: _of_nf4(parts["codes"], parts["scales"])),
    "nf4_double": Format(_pack_nf4_double, _unpack_nf4_double),
    "int8": Format(_pack_int8, lambda parts: parts["codes"] * (parts["row_scales"] / 127)),
}


@functools.cache
def dynamic() -> tuple[float, ...]:
    """Return the 256 values of the signed dynamic type (arXiv:1511.04561), in order."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        middles = (10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)).tolist()
        values += [sign * value for value in middles for sign in (1, -1)]
    return tuple(sorted(values))


@functools.cache
def _dynamic_table(device: torch.device) -> Tensor:
    """Return `dynamic` on a device, made once: a copy from the host would wait for a GPU."""
    return torch.tensor(dynamic(), device=device)


@functools.cache
def _borders(values: tuple[float, ...], device: torch.device) -> Tensor:
    table = torch.tensor(values, device=device)
    return (table[:-1] + table[1:]) / 2


@functools.cache
def _nf4_table(device: torch.device) -> Tensor:
    return torch.tensor(NF4, device=device)


@functools.cache
def _pairs(device: torch.device) -> Tensor:
    """Return a table [256, 2]: the two values of a byte."""
    byte = torch.arange(256)
    return torch.tensor(NF4)[torch.stack([byte >> 4, byte & 15], 1)].to(device)
