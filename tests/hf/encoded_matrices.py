"""Matrices in each format of quantised weights, with their values decoded by other code.

References: bitsandbytes and torch where they decode; else the formula of the format for a single
element, in Python's integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
WORDS = 1 << 32


@dataclass(frozen=True)
class Encoded:
    """A matrix in a format. stored: by the suffix of the layer's name. values: in fp32."""

    stored: Tensors
    values: Tensor


Encode = Callable[[Tensor], Encoded]


def elements(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    rows, columns = shape
    return ((row, column) for row in range(rows) for column in range(columns))


def by_element(shape: tuple[int, ...], value: Callable[[int, int], np.float32]) -> Tensor:
    """A matrix of the formula of a single element."""
    values = np.empty(shape, np.float32)
    for row, column in elements(shape):
        values[row, column] = value(row, column)
    return torch.from_numpy(values)


def pack(codes: np.ndarray, bits: int) -> Tensor:
    """Words of int32 of codes along the last dimension, the low bits first, by addition."""
    per_word = 32 // bits
    rows, columns = codes.shape
    words = np.zeros((rows, -(-columns // per_word)), np.int64)
    for row, column in elements(codes.shape):
        words[row, column // per_word] += int(codes[row, column]) << bits * (column % per_word)
    return torch.from_numpy((words - WORDS * (words >= WORDS // 2)).astype(np.int32))


def fp8_blocks(rows: int, columns: int, scales: torch.dtype = torch.float32) -> Encode:
    """E4M3 with a scale for each block; scales of E8M0 are powers of two."""

    def encode(weight: Tensor) -> Encoded:
        grid = [-(-size // step) for size, step in zip(weight.shape, (rows, columns), strict=True)]
        scale = torch.empty(grid)
        for i, j in elements(tuple(grid)):
            block = weight[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale[i, j] = block.abs().max() / 448
        if scales == torch.float8_e8m0fnu:
            scale = scale.log2().ceil().exp2()
        scale = scale.to(scales)
        wide = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        wide = wide[: weight.shape[0], : weight.shape[1]]
        codes = (weight / wide).to(torch.float8_e4m3fn)
        return Encoded({".weight": codes, ".weight_scale_inv": scale}, codes.float() * wide)

    return encode


def fp8_rows(weight: Tensor) -> Encoded:
    """E4M3 with a scale for each row in bf16, and what goes with activations and caches."""
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    codes = (weight / scale.float()).to(torch.float8_e4m3fn)
    stored = {".weight": codes, ".weight_scale": scale, ".input_scale": torch.ones(1)}
    return Encoded(stored, codes.float() * scale.float())


def fp8_tensor(weight: Tensor) -> Encoded:
    """E4M3 with a single scale, of no dimension."""
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return Encoded({".weight": codes, ".weight_scale": scale}, codes.float() * scale)


def int8_rows(weight: Tensor) -> Encoded:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return Encoded({".weight": codes, ".weight_scale": scale}, codes.float() * scale)


def bitsandbytes_blocks(kind: str, nested: bool) -> Encode:
    """4 bits by bitsandbytes itself.

    Its kernel for a CPU (0.50.2) begins a block with each row, against its own encoder: where a
    row is no whole number of blocks, the reference is the formula.
    """

    def encode(weight: Tensor) -> Encoded:
        from bitsandbytes.functional import dequantize_4bit, dequantize_blockwise, quantize_4bit

        state: Any
        codes, state = quantize_4bit(weight, quant_type=kind, compress_statistics=nested)
        packed = state.as_dict(packed=True)
        stored = {f".weight.{name}": values for name, values in packed.items()}
        if weight.shape[1] % state.blocksize == 0:
            return Encoded({".weight": codes} | stored, dequantize_4bit(codes, state))
        scales = state.absmax
        if nested:
            scales = dequantize_blockwise(scales, state.state2) + state.offset
        table, flat, steps = state.code.numpy(), codes.flatten().tolist(), scales.numpy()

        def value(row: int, column: int) -> np.float32:
            place = row * weight.shape[1] + column
            code = flat[place // 2] & 15 if place % 2 else flat[place // 2] >> 4
            return table[code] * steps[place // state.blocksize]

        return Encoded({".weight": codes} | stored, by_element(tuple(weight.shape), value))

    return encode


def bitsandbytes_rows(weight: Tensor) -> Encoded:
    """8 bits by bitsandbytes itself."""
    from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant

    codes, scales, _ = int8_vectorwise_quant(weight.half())
    stored = {
        ".weight": codes,
        ".SCB": scales,
        ".weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Encoded(stored, int8_vectorwise_dequant(codes, scales))


def grouped(
    weight: Tensor, bits: int, groups: np.ndarray, middle: bool = False
) -> tuple[np.ndarray, ...]:
    """Codes [out, in], scales and zeros [out, groups] of rounding between least and greatest.

    middle: zeros are the middle of the codes. groups: [in], the group of each input.
    """
    values, top = weight.numpy(), (1 << bits) - 1
    count = int(groups.max()) + 1
    scales = np.empty((len(values), count), np.float16)
    zeros = np.empty((len(values), count), np.int64)
    codes = np.empty(values.shape, np.int64)
    for number in range(count):
        mine = groups == number
        low, high = values[:, mine].min(1).clip(max=0), values[:, mine].max(1).clip(min=0)
        if middle:
            high = np.maximum(high, -low)
            low = -high
        scales[:, number] = (high - low) / top
        zeros[:, number] = np.ceil(-low / scales[:, number].astype(np.float32)).clip(1, top)
        scaled = values[:, mine] / scales[:, number, None].astype(np.float32)
        codes[:, mine] = np.round(scaled + zeros[:, number, None]).clip(0, top)
    return codes, scales, zeros


def gptq(bits: int, group: int, lowered: bool, shuffled: bool) -> Encode:
    """Codes along the input; with `shuffled` the groups are of inputs out of order."""

    def encode(weight: Tensor) -> Encoded:
        inputs = weight.shape[1]
        groups = np.arange(inputs) // group
        if shuffled:
            groups = np.random.default_rng(0).permutation(groups)
        codes, scales, zeros = grouped(weight, bits, groups)
        stored = {".qweight": pack(codes, bits).T, ".scales": torch.from_numpy(scales.T.copy())}
        stored[".qzeros"] = pack(zeros.T - lowered, bits)
        stored[".g_idx"] = torch.from_numpy(groups.astype(np.int32))
        words, packed = stored[".qweight"].tolist(), stored[".qzeros"].tolist()
        per_word, mask = 32 // bits, (1 << bits) - 1

        def value(row: int, column: int) -> np.float32:
            code = words[column // per_word][row] >> bits * (column % per_word) & mask
            zero = packed[groups[column]][row // per_word] >> bits * (row % per_word) & mask
            return np.float32(scales[row, groups[column]]) * np.float32(code - zero - lowered)

        return Encoded(stored, by_element(tuple(weight.shape), value))

    return encode


def awq(weight: Tensor) -> Encoded:
    """Codes along the output, in the order of the kernel: word i has columns 0, 2, 4, 6, 1, ..."""
    group, order = 32, [0, 2, 4, 6, 1, 3, 5, 7]
    groups = np.arange(weight.shape[1]) // group
    codes, scales, zeros = grouped(weight, 4, groups)

    def packed(columns: np.ndarray) -> Tensor:
        rows, width = columns.shape
        return pack(columns.reshape(rows, width // 8, 8)[:, :, order].reshape(rows, width), 4)

    stored = {".qweight": packed(codes.T), ".qzeros": packed(zeros.T)}
    stored[".scales"] = torch.from_numpy(scales.T.copy())
    words, packed_zeros = stored[".qweight"].tolist(), stored[".qzeros"].tolist()

    def value(row: int, column: int) -> np.float32:
        shift, number = 4 * order.index(row % 8), groups[column]
        code = words[column][row // 8] >> shift & 15
        zero = packed_zeros[number][row // 8] >> shift & 15
        return np.float32(scales[row, number]) * np.float32(code - zero)

    return Encoded(stored, by_element(tuple(weight.shape), value))


def compressed(bits: int, group: int, zeros_stored: bool, shuffled: bool = False) -> Encode:
    """Integers above zero in words along the rows; zeros in words along the columns."""

    def encode(weight: Tensor) -> Encoded:
        rows, inputs = weight.shape
        groups = np.arange(inputs) // group
        if shuffled:
            groups = np.random.default_rng(0).permutation(groups)
        codes, scales, zeros = grouped(weight, bits, groups, middle=not zeros_stored)
        scale = torch.from_numpy(scales.astype(np.float32)).bfloat16()
        stored = {".weight_packed": pack(codes, bits), ".weight_scale": scale}
        stored[".weight_shape"] = torch.tensor([rows, inputs])
        if zeros_stored:
            stored[".weight_zero_point"] = pack(zeros.T, bits).T
        if shuffled:
            stored[".weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        words, per_word, mask = stored[".weight_packed"].tolist(), 32 // bits, (1 << bits) - 1
        steps = scale.float().numpy()

        def value(row: int, column: int) -> np.float32:
            code = words[row][column // per_word] >> bits * (column % per_word) & mask
            number = groups[column]
            return steps[row, number] * np.float32(code - zeros[row, number])

        return Encoded(stored, by_element((rows, inputs), value))

    return encode


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def nvfp4(weight: Tensor) -> Encoded:
    """Codes of two a byte with a scale in E4M3 for each 16, and one that divides these."""
    rows = len(weight)
    whole = 448 * 6 / weight.abs().max()
    scale = weight.reshape(rows, -1, 16).abs().amax(-1) / 6 * whole
    scale = scale.to(torch.float8_e4m3fn)
    steps = (scale.float() / whole).repeat_interleave(16, 1)
    codes = nearest(weight / steps)
    stored = {".weight_packed": codes[:, ::2] | codes[:, 1::2] << 4, ".weight_scale": scale}
    stored |= {".weight_global_scale": whole.reshape(1), ".input_global_scale": torch.ones(1)}
    return Encoded(stored, torch.tensor(E2M1)[codes.long()] * steps)


def nearest(ratio: Tensor) -> Tensor:
    """Codes of the nearest values of E2M1."""
    return (ratio.nan_to_num()[..., None] - torch.tensor(E2M1)).abs().argmin(-1).to(torch.uint8)


def microscaled(bits: int) -> Encode:
    """Codes of 4 or 8 bits with a power of two for each 32."""

    def encode(weight: Tensor) -> Encoded:
        blocks = weight.reshape(len(weight), -1, 32)
        powers = (blocks.abs().amax(-1) / (6 if bits == 4 else 448)).log2().ceil()
        steps = powers.exp2().repeat_interleave(32, 1)
        stored = {".weight_scale": (powers + 127).to(torch.uint8)}
        if bits == 8:
            codes = (weight / steps).to(torch.float8_e4m3fn)
            return Encoded(stored | {".weight": codes}, codes.float() * steps)
        codes = nearest(weight / steps)
        stored[".weight_packed"] = codes[:, ::2] | codes[:, 1::2] << 4
        return Encoded(stored, torch.tensor(E2M1)[codes.long()] * steps)

    return encode
