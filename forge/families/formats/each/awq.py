"""AWQ: 4-bit codes packed along the output, with a scale and a zero for each group of inputs.

The layout is `gemm` of https://github.com/casper-hansen/AutoAWQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge.families.formats.coded import AT_ONCE, Coded, nibbles, read_codes, read_numbers
from forge.families.formats.format import Format, grouped_parts, lacks_parts, misfit
from forge.families.shards import Stored

SUFFIXES = (".qweight", ".qzeros", ".scales")
CODES, ZEROS, SCALES = SUFFIXES
PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""For each of eight outputs the place of its code in a word."""


@dataclass(frozen=True, kw_only=True)
class AlongOutput(Coded):
    """A matrix [out, in] of codes [in, out / 8]. group: inputs with one scale."""

    group: int

    def rows(self, first: int, last: int) -> np.ndarray:
        outputs, inputs = self.shape
        values = np.empty((last - first, inputs), np.float32)
        scales = read_numbers(self.parts[SCALES])[:, first:last]
        zeros = _outputs(read_codes(self.parts[ZEROS]), first, last)
        step = max(1, AT_ONCE // outputs)
        for begin in range(0, inputs, step):
            end = min(begin + step, inputs)
            groups = np.arange(begin, end) // self.group
            codes = _outputs(read_codes(self.parts[CODES], begin, end), first, last)
            values[:, begin:end] = ((codes - zeros[groups]) * scales[groups]).T
        return values


def _outputs(packed: np.ndarray, first: int, last: int) -> np.ndarray:
    """Codes [inputs, last - first] of some outputs."""
    words = slice(first // 8, -(-last // 8))
    codes = nibbles(np.ascontiguousarray(packed[:, words]), 4).reshape(len(packed), -1, 8)
    in_order = codes[:, :, PLACES].reshape(len(packed), -1)
    return in_order[:, first - words.start * 8 : last - words.start * 8]


class AWQ(Format):
    """AWQ in 4 bits."""

    methods = ("awq",)
    rounded = True
    name = "AWQ in 4 bits"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        if (bits := int(config.get("bits", config.get("w_bit", 4)))) != 4:
            raise ValueError(f"AWQ with bits={bits}; 4 bits are read")
        version = str(config.get("version") or config.get("format") or "gemm").lower()
        if version != "gemm":
            raise ValueError(f"AWQ with version={version!r}; gemm is read")
        self.group = int(config.get("group_size", config.get("q_group_size", 128)))

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        for stem, parts in grouped_parts(files, SUFFIXES, tensors, faults):
            if lacks_parts(stem, parts, (ZEROS, SCALES), faults):
                continue
            inputs, words = parts[CODES].shape
            group = self.group if self.group > 0 else inputs
            count = -(-inputs // group)
            misfit(stem + ZEROS, parts[ZEROS], (count, words), faults)
            misfit(stem + SCALES, parts[SCALES], (count, words * 8), faults)
            tensors[f"{stem}.weight"] = AlongOutput(
                file=parts[CODES].file,
                dtype="F32",
                shape=(words * 8, inputs),
                start=parts[CODES].start,
                parts=parts,
                group=group,
            )
        return tensors
