"""compressed-tensors: packed integers, and 8-bit or 4-bit floats with their scales.

Layouts: https://github.com/vllm-project/compressed-tensors, compressors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from forge.families.formats.coded import (
    Coded,
    e2m1_pairs,
    fits_grid,
    nibbles,
    powers_of_two,
    read_codes,
    read_numbers,
    spread_scales,
)
from forge.families.formats.each.fp8 import scaled
from forge.families.formats.format import Format, grouped_parts, lacks_parts, misfit
from forge.families.shards import Stored

LAYOUTS = ("pack-quantized", "float-quantized", "int-quantized", "naive-quantized")
LAYOUTS += ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized")
LAYOUTS += ("mixed-precision", "dense")
SUFFIXES = (".weight_packed", ".weight", ".weight_scale", ".weight_zero_point", ".weight_shape")
SUFFIXES += (".weight_g_idx", ".weight_global_scale")
PACKED, WEIGHT, SCALE, ZERO, SHAPE, INDEX, GLOBAL = SUFFIXES


@dataclass(frozen=True, kw_only=True)
class Integers(Coded):
    """A matrix of integers packed in words along its rows, stored above zero."""

    bits: int
    group: int

    def decode(self, first: int, last: int) -> np.ndarray:
        inputs, middle = self.shape[1], 1 << self.bits - 1
        words = read_codes(self.parts[PACKED], first, last)
        values = nibbles(words, self.bits)[:, :inputs] - middle
        columns = np.arange(inputs) // self.group
        if INDEX in self.parts and (index := read_codes(self.parts[INDEX])).min() >= 0:
            columns = index
        if ZERO in self.parts:
            values = values - self._zeros(first, last)[:, columns]
        return values * read_numbers(self.parts[SCALE], first, last)[:, columns]

    def _zeros(self, first: int, last: int) -> np.ndarray:
        """Zeros [rows, groups]; in words they are packed along the rows of the matrix."""
        stored = self.parts[ZERO]
        if stored.dtype != "I32":
            return read_codes(stored, first, last)
        per_word = 32 // self.bits
        begin, end = first // per_word, -(-last // per_word)
        words = np.ascontiguousarray(read_codes(stored, begin, end).T)
        zeros = nibbles(words, self.bits).T - (1 << self.bits - 1)
        return zeros[first - begin * per_word : last - begin * per_word]


@dataclass(frozen=True, kw_only=True)
class Floats(Coded):
    """A matrix of E2M1 codes, two in a byte. group: inputs with one scale."""

    group: int

    def decode(self, first: int, last: int) -> np.ndarray:
        values = e2m1_pairs()[read_codes(self.parts[PACKED], first, last)].reshape(last - first, -1)
        if GLOBAL in self.parts:
            scales = spread_scales(self.parts[SCALE], self.shape, first, last, (1, self.group))
            scales = scales / read_numbers(self.parts[GLOBAL]).reshape(1, 1)
        else:
            scales = powers_of_two(read_codes(self.parts[SCALE], first, last))
            scales = np.repeat(scales, self.group, axis=1)
        values *= scales
        return values


class CompressedTensors(Format):
    """The layouts of compressed-tensors, told apart by what is stored for a weight."""

    methods = ("compressed-tensors",)
    inert = (*Format.inert, ".input_zero_point", ".input_global_scale", ".output_scale")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        weights = [group["weights"] for group in config["config_groups"].values()]
        layouts = {
            config.get("format"),
            *(g.get("format") for g in config["config_groups"].values()),
        }
        if unknown := {str(layout) for layout in layouts if layout} - {*LAYOUTS}:
            read = ", ".join(LAYOUTS)
            raise ValueError(
                f"compressed-tensors with format={sorted(unknown)[0]!r}; {read} are read"
            )
        sparse = (config.get("sparsity_config") or {}).get("format") or "dense"
        if sparse != "dense":
            raise ValueError(
                f"compressed-tensors with sparsity_config.format={sparse!r}; dense is read"
            )
        self.bits = {int(entry["num_bits"]) for entry in weights if entry}
        if odd := self.bits - {2, 4, 8}:
            raise ValueError(f"compressed-tensors with num_bits={max(odd)}; 2, 4 and 8 are read")
        self.kinds = {str(entry["type"]) for entry in weights if entry}
        bits, kinds = " and ".join(map(str, sorted(self.bits))), " and ".join(sorted(self.kinds))
        self.name = f"compressed-tensors, {kinds} in {bits} bits"
        self.rounded = "int" in self.kinds and min(self.bits) <= 4
        self.blocks = {tuple(entry.get("block_structure") or (1, 1)) for entry in weights if entry}
        if len(self.blocks) > 1:
            raise ValueError("compressed-tensors with several block_structure; one is read")

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        in_words = {name.removesuffix(PACKED) for name in files if name.endswith(PACKED)}
        packed = {n: x for n, x in files.items() if n.rpartition(".")[0] in in_words}
        for stem, parts in grouped_parts(packed, SUFFIXES, tensors, faults):
            if lacks_parts(stem, parts, (SCALE,), faults):
                continue
            whole = parts[PACKED].dtype == "U8"
            read = self._floats if whole else self._integers
            if (tensor := read(stem, parts, faults)) is not None:
                tensors[stem + WEIGHT] = tensor
        others = {name: x for name, x in files.items() if name not in packed}
        of_weight = tuple(suffix for suffix in SUFFIXES if suffix != PACKED)
        for stem, parts in grouped_parts(others, of_weight, tensors, faults):
            if parts[WEIGHT].dtype not in ("F8_E4M3", "I8"):
                tensors |= {f"{stem}{suffix}": stored for suffix, stored in parts.items()}
            elif not lacks_parts(stem, parts, (SCALE,), faults):
                meanings = {"codes": WEIGHT, "scales": SCALE, "zeros": ZERO}
                named = {key: parts[suffix] for key, suffix in meanings.items() if suffix in parts}
                tensors[stem + WEIGHT] = self._scaled(stem + WEIGHT, named, faults)
        return tensors

    def _scaled(self, name: str, parts: Mapping[str, Stored], faults: list[str]) -> Stored:
        (block,) = self.blocks
        shape, grid = parts["codes"].shape, parts["scales"].shape
        if len(grid) == 2 and 1 < grid[1] < shape[1] and not fits_grid(grid, shape, block):
            block = (1, -(-shape[1] // grid[1]))
        return scaled(name, parts, block, faults)

    def _integers(self, stem: str, parts: Mapping[str, Stored], faults: list[str]) -> Any:
        if lacks_parts(stem, parts, (SHAPE,), faults):
            return None
        shape = tuple(int(size) for size in read_codes(parts[SHAPE]))
        rows, words = parts[PACKED].shape
        bits = [b for b in self.bits if 32 % b == 0 and -(-shape[-1] // (32 // b)) == words]
        if len(shape) != 2 or shape[0] != rows or len(bits) != 1:
            stored = f"{[rows, words]} for a matrix {list(shape)}"
            faults.append(f"{stem}{PACKED} has the shape {stored}")
            return None
        groups = parts[SCALE].shape[-1]
        group = -(-shape[1] // groups)
        if misfit(stem + SCALE, parts[SCALE], (rows, -(-shape[1] // group)), faults):
            return None
        return self._of(Integers, parts, shape, bits=bits[0], group=group)

    def _floats(self, stem: str, parts: Mapping[str, Stored], faults: list[str]) -> Any:
        rows, half = parts[PACKED].shape
        of_nvidia = parts[SCALE].dtype == "F8_E4M3"
        if of_nvidia and lacks_parts(stem, parts, (GLOBAL,), faults):
            return None
        if of_nvidia and prod(parts[GLOBAL].shape) != 1:
            faults.append(f"{stem}{GLOBAL} has the shape {list(parts[GLOBAL].shape)}, not [1]")
            return None
        group = 16 if of_nvidia else 32
        if misfit(stem + SCALE, parts[SCALE], (rows, half * 2 // group), faults):
            return None
        return self._of(Floats, parts, (rows, half * 2), group=group)

    def _of(self, kind: Any, parts: Mapping[str, Stored], shape: tuple[int, ...], **more) -> Any:
        codes = parts[PACKED]
        place: dict[str, Any] = {"file": codes.file, "start": codes.start}
        return kind(dtype="F32", shape=shape, parts=parts, **place, **more)
