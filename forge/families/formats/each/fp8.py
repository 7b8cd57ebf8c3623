"""FP8: E4M3 weights with a scale for each block, row or tensor.

DeepSeek 3 has blocks of 128 x 128 (https://arxiv.org/abs/2412.19437, section 3.3); `_inv` is a part
of the name alone, every scale multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forge.families.formats.coded import Coded, fits_grid, read_numbers, spread_scales
from forge.families.formats.format import Format
from forge.families.shards import Stored

SCALES = ("_scale_inv", "_scale")
FP8 = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, kw_only=True)
class Scaled(Coded):
    """Stored numbers times scales. block: sizes of a block, of the last dimensions."""

    block: tuple[int, ...]

    def decode(self, first: int, last: int) -> np.ndarray:
        values = read_numbers(self.parts["codes"], first, last)
        if "zeros" in self.parts:
            values -= spread_scales(self.parts["zeros"], self.shape, first, last, self.block)
        values *= spread_scales(self.parts["scales"], self.shape, first, last, self.block)
        return values


def scaled(
    name: str,
    parts: Mapping[str, Stored],
    block: tuple[int, ...],
    faults: list[str],
) -> Scaled:
    """A tensor of stored numbers and their scales; scales in bytes are powers of two.

    faults: gains scales of other shapes.
    """
    codes, scales = parts["codes"], parts["scales"]
    if scales.dtype == "U8":
        parts = {**parts, "scales": replace(scales, dtype="F8_E8M0")}
    for meaning, stored in parts.items():
        if meaning != "codes" and not fits_grid(stored.shape, codes.shape, block):
            shapes = f"{list(stored.shape)} for {list(codes.shape)} in blocks of {list(block)}"
            faults.append(f"{meaning} of {name} have the shape {shapes}")
    return Scaled(
        file=codes.file, dtype="F32", shape=codes.shape, start=codes.start, parts=parts, block=block
    )


class BlockFP8(Format):
    """FP8 of DeepSeek, Qwen and of fbgemm; what is quantised has a scale beside it."""

    methods = ("fp8", "fbgemm_fp8")
    inert = (*Format.inert, ".activation_scale", ".input_scale_ub")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.block = tuple(int(size) for size in config.get("weight_block_size") or (1, 1))
        if len(self.block) != 2 or min(self.block) < 1:
            raise ValueError(f"weight_block_size={list(self.block)} is no size of a block")
        sizes = " x ".join(map(str, self.block))
        self.name = "FP8" if self.block == (1, 1) else f"FP8 in blocks of {sizes}"

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors = dict(files)
        for name, codes in files.items():
            if codes.dtype not in FP8:
                continue
            scale = next((name + suffix for suffix in SCALES if name + suffix in files), None)
            if scale is None:
                faults.append(f"{name}{SCALES[0]} is missing")
                continue
            parts = {"codes": codes, "scales": tensors.pop(scale)}
            tensors[name] = scaled(name, parts, self.block, faults)
        return tensors
