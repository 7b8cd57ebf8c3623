"""Weights of 4-bit NormalFloat unpacked by a single Triton kernel.

Only `forge.adapters.formats` imports this file, where Triton is installed.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit(do_not_specialize=["blocks"])
def unpack_nf4(
    codes,
    scales,
    row_scales,
    values,
    of_scales,
    weight,
    blocks,
    blocks_of_row,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # pragma: no cover
    """Write BLOCKS blocks of values with one scale each.

    codes: two of a byte. scales: of blocks, or with row_scales their codes in the table of_scales,
    times the row's largest plus its mean. values: of the 16 codes.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    here, half = at < blocks, BLOCK // 2
    packed = at[:, None] * half + tl.arange(0, BLOCK // 2)[None, :]
    pair = tl.load(codes + packed, mask=here[:, None], other=0).to(tl.int32)
    relative = tl.load(values + tl.interleave(pair >> 4, pair & 15))
    scale = tl.load(scales + at, mask=here, other=0)
    if row_scales is not None:
        row = row_scales + at // blocks_of_row * 2
        scale = tl.load(of_scales + scale.to(tl.int32)) * tl.load(row, mask=here, other=0)
        scale += tl.load(row + 1, mask=here, other=0)
    places = at[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    made = (relative * scale[:, None]).to(weight.dtype.element_ty)
    tl.store(weight + places, made, mask=here[:, None])
