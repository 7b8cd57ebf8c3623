"""MXFP4 of gpt-oss: E2M1 codes in groups of 32 with a power of two each.

https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from forge.families.formats.coded import Coded, e2m1_pairs, powers_of_two, read_codes
from forge.families.formats.format import Format, grouped_parts, lacks_parts, misfit
from forge.families.shards import Stored

BLOCKS, SCALES = "_blocks", "_scales"


@dataclass(frozen=True, kw_only=True)
class Transposed(Coded):
    """Experts [experts, in, out], stored as blocks [experts, out, in / 32, 16] of two codes."""

    def decode(self, first: int, last: int) -> np.ndarray:
        values = e2m1_pairs()[read_codes(self.parts[BLOCKS], first, last)]
        experts, rows, blocks = values.shape[:3]
        values = values.reshape(experts, rows, blocks, -1)
        values *= powers_of_two(read_codes(self.parts[SCALES], first, last))[..., None]
        return values.reshape(experts, rows, -1).swapaxes(1, 2)


class MXFP4(Format):
    """The experts of gpt-oss as published."""

    methods = ("mxfp4",)
    name = "MXFP4"

    def plain(self, files: Mapping[str, Stored], faults: list[str]) -> dict[str, Stored]:
        tensors: dict[str, Stored] = {}
        for stem, parts in grouped_parts(files, (BLOCKS, SCALES), tensors, faults):
            if lacks_parts(stem, parts, (SCALES,), faults):
                continue
            codes = parts[BLOCKS]
            if len(codes.shape) != 4 or codes.shape[3] != 16:
                faults.append(f"{stem}{BLOCKS} has the shape {list(codes.shape)}")
                continue
            misfit(stem + SCALES, parts[SCALES], codes.shape[:3], faults)
            experts, rows, blocks, _ = codes.shape
            tensors[stem] = Transposed(
                file=codes.file,
                dtype="F32",
                shape=(experts, blocks * 32, rows),
                start=codes.start,
                parts=parts,
            )
        return tensors
