"""AdamW's update with moments of 8 or 4 bits as a single Triton kernel.

Triton comes with torch's CUDA build; only `forge.optim.low_bit_kernel` imports this file.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def load_moment(
    codes, scale, values, at, here, BITS: tl.constexpr, BLOCK: tl.constexpr
):  # pragma: no cover
    """The moment in fp32, [blocks, BLOCK]."""
    if BITS == 4:
        half: tl.constexpr = BLOCK // 2
        packed = at[:, None] * half + tl.arange(0, half)[None, :]
        pair = tl.load(codes + packed, mask=here[:, None], other=0).to(tl.int32)
        relative = tl.load(values + tl.interleave(pair >> 4, pair & 15))
    else:
        places = at[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        code = tl.load(codes + places, mask=here[:, None], other=0)
        relative = tl.load(values + code.to(tl.int32))
    return relative * tl.load(scale + at, mask=here, other=0)[:, None]


@triton.jit
def guessed_code(x, SIGNED: tl.constexpr):  # pragma: no cover
    """A code of the dynamic table of 8 bits at most one from the nearest, by arithmetic: each
    decade from 1e-7 on has equal cells, twice as many as the decade before.
    """
    size, decade = tl.abs(x), tl.zeros_like(x).to(tl.int32)
    power = tl.zeros_like(x) + 1e6
    for _ in tl.static_range(6):
        above = size * power >= 1.0
        decade += above.to(tl.int32)
        power = tl.where(above, power * 0.1, power)
    cells = (1 if SIGNED else 2) << decade
    place = ((size * power - 0.1) * (1 / 0.9) * cells.to(tl.float32)).to(tl.int32)
    place = tl.minimum(tl.maximum(place, 0), cells - 1)
    if SIGNED:
        return tl.where(x >= 0, 127 + cells + place, 127 - cells - place)
    return cells - 1 + place


@triton.jit
def store_moment(
    codes,
    scale,
    bounds,
    moment,
    at,
    here,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # pragma: no cover
    """Write codes and scales of a moment, [blocks, BLOCK].

    bounds: the least value of each code, and infinity.
    """
    largest = tl.maximum(tl.max(tl.abs(moment), 1), 1e-12)
    places = at[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = moment / largest[:, None]
    if BITS == 8:
        near = guessed_code(x, SIGNED)
        up = (x >= tl.load(bounds + near + 1)).to(tl.int32)
        down = (x < tl.load(bounds + near)).to(tl.int32)
        tl.store(codes + places, (near + up - down).to(tl.uint8), mask=here[:, None])
    else:
        code = tl.zeros_like(x).to(tl.int32)
        for number in tl.static_range(1, 16):
            code += (x >= tl.load(bounds + number)).to(tl.int32)
        half: tl.constexpr = BLOCK // 2
        first, second = tl.split(tl.reshape(code, [x.shape[0], half, 2]))
        packed = at[:, None] * half + tl.arange(0, half)[None, :]
        tl.store(codes + packed, ((first << 4) | second).to(tl.uint8), mask=here[:, None])
    tl.store(scale + at, largest, mask=here)


@triton.jit
def one_minus_power(count, log_beta):  # pragma: no cover
    """1 - beta**count; a series where the difference would lose its digits."""
    x = count * log_beta
    series = 1 + x / 8
    for number in tl.static_range(6):
        series = 1 + x / (7 - number) * series
    return tl.where(x > -0.5, -x * series, 1 - tl.exp(x))


@triton.jit
def rounded_at_random(w, index, first_key, second_key):  # pragma: no cover
    """`forge.optim.rounding.stochastic` of fp32 values, with the same bits."""
    x = (index.to(tl.uint32) * 0x9E3779B9) ^ first_key.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) + second_key.to(tl.uint32)
    x = x * 0x846CA68B
    x = x ^ (x >> 16)
    bits = (w.to(tl.uint32, bitcast=True) + (x & 0xFFFF)) & 0xFFFF0000
    finite = tl.abs(w) < float("inf")
    return tl.where(finite, bits.to(tl.float32, bitcast=True), w)


@triton.jit
def whole_index(
    of_rows, of_columns, at, here, blocks_of_row, BLOCK: tl.constexpr
):  # pragma: no cover
    """Indices of values in the whole parameter, [blocks, BLOCK]."""
    # A division a block: one a value would take longer than all else.
    columns = (at % blocks_of_row)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    index = tl.load(of_columns + columns, mask=here[:, None], other=0)
    if of_rows is not None:
        index += tl.load(of_rows + at // blocks_of_row, mask=here, other=0)[:, None]
    return index


@triton.jit
def adam_step(m, v, count, log_beta_1, log_beta_2, eps):  # pragma: no cover
    """The step of new moments, without its rate; count: of updates."""
    number = tl.maximum(tl.load(count).to(tl.float32), 1.0)
    square = v / one_minus_power(number, log_beta_2)
    return m / one_minus_power(number, log_beta_1) / (tl.sqrt(square) + eps)


@triton.jit(do_not_specialize=["first_key", "second_key", "blocks"])
def adamw_of_blocks(
    weight, rounded, gradient, codes_1, scale_1, values_1, bounds_1, codes_2, scale_2, values_2,
    bounds_2, count, factor, found_inf, of_rows, of_columns, first_key, second_key, blocks, rate,
    decay, rest_1, rest_2, log_beta_1, log_beta_2, eps, blocks_of_row,
    BITS: tl.constexpr, CAUTIOUS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip  # pragma: no cover
    """`forge.optim.adam_update._update` of BLOCKS blocks of values with one scale each.

    Pointers may be None, as there. rest_1: 1 - beta1. of_rows, of_columns: summands of a value's
    index, for stochastic rounding.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    if found_inf is not None:  # a skipped update reads and writes nothing
        blocks = tl.where(tl.load(found_inf) == 0, blocks, 0)
    here = at < blocks
    places, all_here = at[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], here[:, None]
    g = tl.load(gradient + places, mask=all_here, other=0).to(tl.float32)
    if factor is not None:
        g = g * tl.load(factor)
    old_w = tl.load(weight + places, mask=all_here, other=0).to(tl.float32)
    m = load_moment(codes_1, scale_1, values_1, at, here, BITS, BLOCK)
    v = load_moment(codes_2, scale_2, values_2, at, here, BITS, BLOCK)
    m += rest_1 * (g - m)
    v += rest_2 * (g * g - v)
    step = adam_step(m, v, count, log_beta_1, log_beta_2, eps)
    decayed = tl.where(old_w * step >= 0, old_w, 0.0) if CAUTIOUS else old_w
    w = old_w - rate * (step + decay * decayed)
    store_moment(codes_1, scale_1, bounds_1, m, at, here, BITS, True, BLOCK)
    store_moment(codes_2, scale_2, bounds_2, v, at, here, BITS, False, BLOCK)
    if rounded is not None:
        tl.store(rounded + places, w.to(rounded.dtype.element_ty), mask=all_here)
    if of_columns is not None:
        index = whole_index(of_rows, of_columns, at, here, blocks_of_row, BLOCK)
        w = rounded_at_random(w, index, first_key, second_key)
    tl.store(weight + places, w.to(weight.dtype.element_ty), mask=all_here)
