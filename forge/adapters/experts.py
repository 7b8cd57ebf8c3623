"""Adapters of experts: a pair of matrices for each expert, packed like the experts' matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from forge.adapters.adapter import Adapted
from forge.config.adapters.adapter import MAGNITUDE, TAKEN_A, TAKEN_B, A, B
from forge.models.experts import ALIGNMENT, only
from forge.models.grouped import group_of_rows, grouped_mm, looped_mm, rows_of


class AdaptedExperts(Adapted):
    """Mixin of experts. scaling: factors of the adapted matrices, by name."""

    scaling: dict[str, float]
    reads_every_row = True

    def beside(self, name: str, x: Tensor, product: Tensor, counts: Tensor | None = None) -> Tensor:
        """See `forge.models.experts.Experts.beside`."""
        if name not in self.scaling:
            return product
        if not self.adapter_is_on:
            if not hasattr(self, f"{name}_{TAKEN_A}"):
                return product
            return product + self.inner(name, x, counts, (TAKEN_A, TAKEN_B)).to(product.dtype)
        added = self.inner(name, x, counts).to(product.dtype)
        output = torch.add(product, added, alpha=self.scaling[name])
        if not hasattr(self, f"{name}_{MAGNITUDE}"):
            return output
        factor = self.lengthened(name).to(output.dtype)
        if counts is None:
            return output * factor.unsqueeze(1)
        return output * rows_of(factor, group_of_rows(counts, len(x)))

    def inner(
        self, name: str, x: Tensor, counts: Tensor | None, pair: tuple[str, str] = (A, B)
    ) -> Tensor:
        """Compute B A x for rows of experts."""
        a, b = (getattr(self, f"{name}_{which}") for which in pair)
        return self._products(self._products(x, a, counts), b, counts)

    def lengthened(self, name: str) -> Tensor:
        """Return the factors [experts, out] of the rows of the sums."""
        with torch.no_grad():
            squares = self.summed(name).square().sum(-1)
            lengths = self.total(squares, name).sqrt()
        return getattr(self, f"{name}_{MAGNITUDE}") / lengths

    def summed(self, name: str) -> Tensor:
        """Return the sums [experts, out, in] of this rank's weights and adapters."""
        beside = getattr(self, f"{name}_{B}") @ getattr(self, f"{name}_{A}")
        weight = getattr(self, name)
        if not isinstance(weight, Tensor):  # packed in few bits
            weight = weight.packed.weight(beside.dtype)
        return weight + self.scaling[name] * beside

    def total(self, squares: Tensor, name: str) -> Tensor:
        """Return squares summed over ranks with parts of the rows; here rows are whole."""
        return squares

    def _products(self, x: Tensor, weight: Tensor, counts: Tensor | None) -> Tensor:
        """Multiply rows by the matrix of their expert, in the format of the rows."""
        if counts is None:
            return torch.bmm(x, weight.transpose(1, 2).to(x.dtype))
        if self._by_one_kernel(x, weight):
            ends = counts.cumsum(0, dtype=torch.int32)
            filled = self.filled(x, counts)  # type: ignore[operator]
            return only(filled, grouped_mm(x, weight.transpose(1, 2), ends))
        return looped_mm(x, weight.transpose(1, 2).to(x.dtype), counts)

    def _by_one_kernel(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the experts' kernel takes the product.

        A rank that is no multiple of 16 bytes is multiplied in a loop.
        """
        aligned = all(size * x.element_size() % ALIGNMENT == 0 for size in weight.shape[1:])
        return aligned and self._grouped(x)  # type: ignore[operator]
