"""Adapters of experts: a pair of matrices each, packed as theirs are."""

from __future__ import annotations

import torch
from torch import Tensor

from forge.adapters.adapter import Adapted
from forge.config.adapters.adapter import MAGNITUDE, TAKEN_A, TAKEN_B, A, B
from forge.models.experts import ALIGNMENT
from forge.models.grouped import group_of_rows, grouped_mm, looped_mm, rows_of


class AdaptedExperts(Adapted):
    """Mixin of experts. scaling: of each matrix that has an adapter, by its name."""

    scaling: dict[str, float]

    def beside(self, name: str, x: Tensor, product: Tensor, counts: Tensor | None = None) -> Tensor:
        """See `forge.models.experts.Experts.beside`."""
        if name not in self.scaling:
            return product
        if not self.adapter_is_on:
            if not hasattr(self, f"{name}_{TAKEN_A}"):
                return product
            return product + self.inner(name, x, counts, (TAKEN_A, TAKEN_B)).to(product.dtype)
        added = self.inner(name, x, counts).to(product.dtype)
        made = torch.add(product, added, alpha=self.scaling[name])
        if not hasattr(self, f"{name}_{MAGNITUDE}"):
            return made
        factor = self.lengthened(name).to(made.dtype)
        if counts is None:
            return made * factor.unsqueeze(1)
        return made * rows_of(factor, group_of_rows(counts, len(x)))

    def inner(
        self, name: str, x: Tensor, counts: Tensor | None, pair: tuple[str, str] = (A, B)
    ) -> Tensor:
        """B A x, of rows of experts."""
        a, b = (getattr(self, f"{name}_{which}") for which in pair)
        return self._products(self._products(x, a, counts), b, counts)

    def lengthened(self, name: str) -> Tensor:
        """[experts, out], by what rows of the sums are multiplied."""
        with torch.no_grad():
            squares = self.summed(name).square().sum(-1)
            lengths = self.total(squares, name).sqrt()
        return getattr(self, f"{name}_{MAGNITUDE}") / lengths

    def summed(self, name: str) -> Tensor:
        """[experts, out, in], of what this rank has."""
        beside = getattr(self, f"{name}_{B}") @ getattr(self, f"{name}_{A}")
        weight = getattr(self, name)
        if not isinstance(weight, Tensor):  # it is kept in few bits
            weight = weight.packed.weight(beside.dtype)
        return weight + self.scaling[name] * beside

    def total(self, squares: Tensor, name: str) -> Tensor:
        """Of rows, a part of which each of some ranks may have."""
        return squares

    def _products(self, x: Tensor, weight: Tensor, counts: Tensor | None) -> Tensor:
        """Rows times the matrix of their expert, in the numbers that these have."""
        if counts is None:
            return torch.bmm(x, weight.transpose(1, 2).to(x.dtype))
        if self._by_one_kernel(x, weight):
            return grouped_mm(x, weight.transpose(1, 2), counts.cumsum(0, dtype=torch.int32))
        return looped_mm(x, weight.transpose(1, 2).to(x.dtype), counts)

    def _by_one_kernel(self, x: Tensor, weight: Tensor) -> bool:
        """As experts have it; a rank that is no multiple of 16 bytes is multiplied in a loop."""
        aligned = all(size * x.element_size() % ALIGNMENT == 0 for size in weight.shape[1:])
        return aligned and self._grouped(x)  # type: ignore[operator]
