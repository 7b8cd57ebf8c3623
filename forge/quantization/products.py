"""How matrices are multiplied, and the room that kernels of experts ask for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.quantization import Quantization
from forge.models.grouped import group_of_rows, looped_mm
from forge.quantization.rounding import BLOCK


class Products:
    """How matrices are multiplied: here in the numbers that they have.

    linear: x [..., in] with weight [out, in]. grouped: rows of experts.
    """

    def __init__(self, section: Quantization, device: torch.device) -> None:
        """Raises ValueError for a device that lacks what the section needs."""
        least, emulated = section.capability, getattr(section, "emulate", False)
        if device.type == "cuda" and not emulated:
            here = torch.cuda.get_device_capability(device)
            if here < least:
                needs = f"needs a GPU of compute capability {least[0]}.{least[1]}"
                what = f"quantization={section.schema_name} {needs}; this one has"
                fix = "quantization.emulate=true, or quantization=none"
                raise ValueError(f"{what} {here[0]}.{here[1]}. {fix}")

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: [..., in], weight: [out, in] -> [..., out]."""
        return F.linear(x, weight)

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """x: [rows, in], weight: [experts, out, in], counts: [experts], of the rows of each, a
        multiple of 32 -> [rows, out].
        """
        return looped_mm(x, weight.transpose(1, 2), counts)


class Blocks:
    """Room for rows of experts in which each has a multiple of 32: what kernels take.

    counts: [experts], rows of each. Zeros fill the groups up, so that shapes do not depend on the
    counts; the last has what is left.
    """

    def __init__(self, counts: Tensor, rows: int) -> None:
        taken = (counts.clamp(min=1) + BLOCK - 1) // BLOCK * BLOCK
        before = taken.cumsum(0) - taken
        self.size = -(-rows // BLOCK) * BLOCK + len(counts) * BLOCK
        shift = before - (counts.cumsum(0) - counts)
        here = torch.arange(rows, device=counts.device)
        self.place = here + shift[group_of_rows(counts, rows)]
        self.counts = torch.cat([taken[:-1], (self.size - before[-1]).view(1)])

    def fill(self, rows: Tensor) -> Tensor:
        """[rows, width] -> [size, width]."""
        return rows.new_zeros(self.size, rows.shape[1]).index_copy(0, self.place, rows)

    def empty(self, filled: Tensor) -> Tensor:
        """What `fill` did, undone."""
        return filled[self.place]
