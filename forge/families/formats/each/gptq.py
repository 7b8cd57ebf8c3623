"""GPTQ: codes packed along the input, with a scale and a zero for each group of inputs.

The layout is that of AutoGPTQ (https://github.com/AutoGPTQ/AutoGPTQ), which stores zeros less one;
version 2 of GPTQModel stores them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge.families.formats.coded import AT_ONCE, Coded, nibbles, read_codes, read_numbers
from forge.families.formats.format import Format, grouped_parts, lacks_parts, misfit
from forge.families.shards import Stored

SUFFIXES = (".qweight", ".qzeros", ".scales", ".g_idx")
CODES, ZEROS, SCALES, INDEX = SUFFIXES


@dataclass(frozen=True, kw_only=True)
class AlongInput(Coded):
    """A matrix [out, in] of codes [in / codes of a word, out]. lowered: zeros are less by one."""

    bits: int
    group: int
    lowered: bool

    def rows(self, first: int, last: int) -> np.ndarray:
        outputs, inputs = self.shape
        per_word = 32 // self.bits
        values = np.empty((last - first, inputs), np.float32)
        scales = read_numbers(self.parts[SCALES])[:, first:last]
        zeros = nibbles(read_codes(self.parts[ZEROS]), self.bits)[:, first:last]
        if self.lowered:  # the sum has only the bits of a code, as in the kernels of AutoGPTQ
            zeros = zeros + 1 & (1 << self.bits) - 1
        group_of = np.arange(inputs) // self.group
        if INDEX in self.parts:
            group_of = read_codes(self.parts[INDEX])
        words = inputs // per_word
        step = max(1, AT_ONCE // (outputs * per_word))
        for begin in range(0, words, step):
            end = min(begin + step, words)
            packed = np.ascontiguousarray(
                read_codes(self.parts[CODES], begin, end)[:, first:last].T
            )
            columns = slice(begin * per_word, end * per_word)
            codes = nibbles(packed, self.bits) - zeros[group_of[columns]].T
            values[:, columns] = codes * scales[group_of[columns]].T
        return values


class GPTQ(Format):
    """GPTQ in 2, 4 or 8 bits, with activation order or without."""

    methods = ("gptq",)
    rounded = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.bits, self.group = int(config["bits"]), int(config.get("group_size", 128))
        if self.bits not in (2, 4, 8):
            raise ValueError(f"GPTQ with bits={self.bits}; 2, 4 and 8 are read")
        self.version = str(config.get("checkpoint_format") or "gptq")
        if self.version not in ("gptq", "gptq_v2"):
            raise ValueError(
                f"GPTQ with checkpoint_format={self.version!r}; gptq, gptq_v2 are read"
            )
        self.name = f"GPTQ in {self.bits} bits"

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        per_word = 32 // self.bits
        for stem, parts in grouped_parts(files, SUFFIXES, tensors, faults):
            needed = (ZEROS, SCALES, INDEX) if self.config.get("desc_act") else (ZEROS, SCALES)
            if lacks_parts(stem, parts, needed, faults):
                continue
            words, outputs = parts[CODES].shape
            inputs = words * per_word
            group = self.group if self.group > 0 else inputs
            count = -(-inputs // group)
            misfit(stem + SCALES, parts[SCALES], (count, outputs), faults)
            misfit(stem + ZEROS, parts[ZEROS], (count, outputs // per_word), faults)
            if INDEX in parts and not misfit(stem + INDEX, parts[INDEX], (inputs,), faults):
                self._check_index(stem, parts[INDEX], count, faults)
            tensors[f"{stem}.weight"] = AlongInput(
                file=parts[CODES].file,
                dtype="F32",
                shape=(outputs, inputs),
                start=parts[CODES].start,
                parts=parts,
                bits=self.bits,
                group=group,
                lowered=self.version == "gptq",
            )
        return tensors

    def _check_index(self, stem: str, stored: Stored, count: int, faults: list[str]) -> None:
        index = read_codes(stored)
        if index.min() < 0 or index.max() >= count:
            faults.append(f"{stem}{INDEX} names groups outside of 0 to {count - 1}")
