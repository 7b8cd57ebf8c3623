"""The products of matrices, and the padding for kernels of experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.quantization import Quantization
from forge.models.grouped import group_of_rows, looped_mm
from forge.quantization.rounding import BLOCK


class Products:
    """Products of matrices, here in the numbers of the factors.

    linear: x [..., in] with weight [out, in]. grouped: rows of experts.
    """

    def __init__(self, section: Quantization, device: torch.device) -> None:
        """Raises ValueError for a device below the needs of the section."""
        least, emulated = section.capability, getattr(section, "emulate", False)
        if device.type == "cuda" and not emulated:
            capability = torch.cuda.get_device_capability(device)
            if capability < least:
                needs = f"needs a GPU of compute capability {least[0]}.{least[1]}"
                message = f"quantization={section.schema_name} {needs}; this one has"
                hint = "quantization.emulate=true, or quantization=none"
                raise ValueError(f"{message} {capability[0]}.{capability[1]}. {hint}")

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply x [..., in] by weight [out, in] -> [..., out]."""
        return F.linear(x, weight)

    def over_ranks(self, dim: int, group: str) -> Any:
        """The products of this rank's part of a weight that is cut in `dim` over a group of ranks.

        Here the same: blocks with a common scale are whole on a rank.
        """
        return self

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """Multiply rows by the matrix of their expert -> [rows, out].

        x: [rows, in]. weight: [experts, out, in]. counts: [experts], the rows of each expert, a
        multiple of 32.
        """
        return looped_mm(x, weight.transpose(1, 2), counts)


class Blocks:
    """Padding of experts' rows to a multiple of 32 for each expert, as kernels require.

    counts: [experts], rows of each. Zeros fill the groups, so shapes are independent of the counts;
    the last group has the remaining rows.
    """

    def __init__(self, counts: Tensor, rows: int) -> None:
        taken = (counts.clamp(min=1) + BLOCK - 1) // BLOCK * BLOCK
        starts = taken.cumsum(0) - taken
        self.size = -(-rows // BLOCK) * BLOCK + len(counts) * BLOCK
        shift = starts - (counts.cumsum(0) - counts)
        numbers = torch.arange(rows, device=counts.device)
        self.place = numbers + shift[group_of_rows(counts, rows)]
        self.counts = torch.cat([taken[:-1], (self.size - starts[-1]).view(1)])

    def fill(self, rows: Tensor) -> Tensor:
        """[rows, width] -> [size, width]."""
        return rows.new_zeros(self.size, rows.shape[1]).index_copy(0, self.place, rows)

    def empty(self, filled: Tensor) -> Tensor:
        """Undo `fill`."""
        return filled[self.place]
