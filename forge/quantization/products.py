"""The products of a linear layer and of experts, forward and backward, with rounded factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.quantization import Quantization
from forge.models.grouped import group_of_rows, looped_mm, looped_mm_of_rows
from forge.quantization.rounding import BLOCK, Runs, wide

Round = Callable[..., Tensor]
"""As the functions of `forge.quantization.rounding`."""


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


@dataclass(frozen=True)
class Recipe:
    """How the two factors of each of three products are rounded; None = they are not.

    output = input @ weight.T; grad_input = gradient @ weight; grad_weight = gradient.T @ input.
    """

    output: tuple[Round, Round] | None
    grad_input: tuple[Round, Round] | None
    grad_weight: tuple[Round, Round] | None


RECIPES: dict[str, Recipe] = {}
"""By names, which a compiler knows for constants."""


def emulated(x: Tensor, weight: Tensor, recipe: str) -> Tensor:
    """x @ weight.T with factors rounded as RECIPES has it, added up in fp32, or fp64 of fp64."""
    return _Emulated.apply(x.flatten(0, -2), weight, recipe).unflatten(0, x.shape[:-1])


def emulated_grouped(x: Tensor, weight: Tensor, counts: Tensor, recipe: str) -> Tensor:
    """The same of experts, as `Products.grouped`."""
    return _EmulatedGrouped.apply(x, weight, counts, recipe)


class _Emulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        left, right = _rounded(RECIPES[recipe].output, x, weight)
        return (left @ right.mT).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        recipe = RECIPES[ctx.recipe]
        left, right = _rounded(recipe.grad_input, gradient, weight.mT)
        by_x = (left @ right.mT).to(x.dtype)
        left, right = _rounded(recipe.grad_weight, gradient.mT, x.mT)
        return by_x, (left @ right.mT).to(weight.dtype), None


class _EmulatedGrouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor, recipe: str) -> Tensor:
        ctx.save_for_backward(x, weight, counts)
        ctx.recipe = recipe
        left, right = _rounded(RECIPES[recipe].output, x, weight)
        return looped_mm(left, right.mT, counts).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts = ctx.saved_tensors
        recipe = RECIPES[ctx.recipe]
        left, right = _rounded(recipe.grad_input, gradient, weight.mT)
        by_x = looped_mm(left, right.mT, counts).to(x.dtype)
        runs = Runs(group_of_rows(counts, len(x)), counts)
        left, right = _rounded(recipe.grad_weight, gradient, x, runs)
        return by_x, looped_mm_of_rows(left, right, counts).to(weight.dtype), None, None


def _rounded(
    how: tuple[Round, Round] | None, left: Tensor, right: Tensor, runs: Runs | None = None
) -> tuple[Tensor, Tensor]:
    if how is None:
        return wide(left), wide(right)
    return how[0](left, runs), how[1](right, runs)


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
