"""bitsandbytes: 4-bit codes in blocks over the flat weight, and 8-bit rows.

Layout and names: https://github.com/bitsandbytes-foundation/bitsandbytes, functional.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from forge.families.formats.coded import Coded, read_codes, read_numbers
from forge.families.formats.format import Format, grouped_parts, lacks_parts, misfit
from forge.families.shards import Stored

STATES = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
ABSMAX, MAP, NESTED, NESTED_MAP = ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"
ROWS = 1 / 127
"""The largest code of 8 bits stands for the largest weight of a row."""


@dataclass(frozen=True, kw_only=True)
class Blocks(Coded):
    """Codes of 4 bits in flat order, the first in the high bits.

    block: values with one scale. nested: scales with one scale of their own, 0 = scales in fp32.
    """

    block: int
    nested: int
    offset: float

    def decode(self, first: int, last: int) -> np.ndarray:
        width = prod(self.shape[1:])
        begin, end = first * width, last * width
        packed = read_codes(self.parts[""], begin // 2, -(-end // 2)).reshape(-1)
        codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)
        codes = codes[begin % 2 : begin % 2 + end - begin]
        blocks = np.arange(begin, end) // self.block
        scales = self._scales(begin // self.block, (end - 1) // self.block + 1)
        values = read_numbers(self.parts[MAP])[codes] * scales[blocks - begin // self.block]
        return values.reshape(-1, *self.shape[1:])

    def _scales(self, begin: int, end: int) -> np.ndarray:
        if not self.nested:
            return read_numbers(self.parts[ABSMAX], begin, end)
        codes = read_numbers(self.parts[NESTED_MAP])[read_codes(self.parts[ABSMAX], begin, end)]
        scales = read_numbers(self.parts[NESTED])[np.arange(begin, end) // self.nested]
        return codes * scales + np.float32(self.offset)


@dataclass(frozen=True, kw_only=True)
class Rows(Coded):
    """Codes of 8 bits with a scale for each row."""

    def decode(self, first: int, last: int) -> np.ndarray:
        scales = read_numbers(self.parts[".SCB"], first, last)[:, None]
        return read_numbers(self.parts[".weight"], first, last) * scales * np.float32(ROWS)


class BitsAndBytes(Format):
    """bitsandbytes in 4 bits (nf4, fp4, with double quantisation or without) or 8."""

    methods = ("bitsandbytes",)
    rounded = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.in_rows = bool(config.get("load_in_8bit") or config.get("_load_in_8bit"))
        self.name = f"bitsandbytes in {8 if self.in_rows else 4} bits"
        storage = config.get("bnb_4bit_quant_storage") or "uint8"
        if not self.in_rows and storage != "uint8":
            raise ValueError(f"bitsandbytes with bnb_4bit_quant_storage={storage}; uint8 is read")

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        return self._rows(files, faults) if self.in_rows else self._blocks(files, faults)

    def _rows(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        used = {name: x for name, x in files.items() if not name.endswith(".weight_format")}
        for stem, parts in grouped_parts(used, (".weight", ".SCB"), tensors, faults):
            codes = parts[".weight"]
            if codes.dtype != "I8":
                tensors |= {f"{stem}{suffix}": stored for suffix, stored in parts.items()}
                continue
            if lacks_parts(stem, parts, (".SCB",), faults):
                continue
            misfit(f"{stem}.SCB", parts[".SCB"], codes.shape[:1], faults)
            plain: dict[str, Any] = {"shape": codes.shape, "start": codes.start, "parts": parts}
            tensors[f"{stem}.weight"] = Rows(file=codes.file, dtype="F32", **plain)
        return tensors

    def _blocks(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors = dict(files)
        suffixes = (*STATES, ABSMAX, NESTED, MAP, NESTED_MAP)
        for name, codes in files.items():
            if codes.dtype != "U8" or name.endswith(suffixes):
                continue
            parts = {s: tensors.pop(name + s) for s in suffixes if name + s in files}
            state = next((parts.pop(s) for s in STATES if s in parts), None)
            if state is None:
                faults.append(f"{name}{STATES[0]} is missing")
            elif not lacks_parts(name, parts, (ABSMAX, MAP), faults):
                tensors[name] = self._of_state(name, parts | {"": codes}, state, faults)
        return tensors

    def _of_state(
        self, name: str, parts: Mapping[str, Stored], state: Stored, faults: list[str]
    ) -> Stored:
        codes = parts[""]
        try:
            options = json.loads(read_codes(state).tobytes())
            shape = tuple(int(size) for size in options["shape"])
            block, nested = int(options["blocksize"]), int(options.get("nested_blocksize") or 0)
            offset = float(options.get("nested_offset") or 0.0)
        except (ValueError, LookupError, TypeError) as error:
            faults.append(f"the state of {name} cannot be read ({error})")
            return codes
        count = prod(shape)
        misfit(name, codes, (-(-count // 2), 1), faults)
        misfit(name + ABSMAX, parts[ABSMAX], (-(-count // block),), faults)
        misfit(name + MAP, parts[MAP], (16,), faults)
        if nested and not lacks_parts(name, parts, (NESTED, NESTED_MAP), faults):
            scales = -(-parts[ABSMAX].shape[0] // nested)
            misfit(name + NESTED, parts[NESTED], (scales,), faults)
        return Blocks(
            file=codes.file,
            dtype="F32",
            shape=shape,
            start=codes.start,
            parts=parts,
            block=block,
            nested=nested,
            offset=offset,
        )
