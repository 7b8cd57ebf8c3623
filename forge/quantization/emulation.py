"""The products of a linear layer and of experts with rounded factors, forward and backward.

A separate file: the compiler behind these products takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from forge.models.grouped import group_of_rows, looped_mm, looped_mm_of_rows
from forge.quantization.over_ranks import Factors, spread_factors
from forge.quantization.rounding import Runs, in_sum_format

Round = Callable[..., Tensor]
"""A function of `forge.quantization.rounding`."""


@dataclass(frozen=True)
class Recipe:
    """The rounding of the two factors of each of three products; None = no rounding.

    output = input @ weight.T; grad_input = gradient @ weight; grad_weight = gradient.T @ input.
    """

    output: tuple[Round, Round] | None
    grad_input: tuple[Round, Round] | None
    grad_weight: tuple[Round, Round] | None


RECIPES: dict[str, Recipe] = {}
"""Recipes by names, which a compiler treats as constants."""


def emulated(x: Tensor, weight: Tensor, recipe: str, *cut: Any) -> Tensor:
    """Compute x @ weight.T with factors rounded by RECIPES, in sums of fp32, or fp64 for fp64.

    cut: of `forge.quantization.over_ranks.spread_factors`, of a rank's part of a weight.
    """
    return _Emulated.apply(x.flatten(0, -2), weight, recipe, *cut).unflatten(0, x.shape[:-1])


def emulated_grouped(x: Tensor, weight: Tensor, counts: Tensor, recipe: str) -> Tensor:
    """Compute the emulated products of experts, with the arguments of `Products.grouped`."""
    return _EmulatedGrouped.apply(x, weight, counts, recipe)


# torch 2.11 traces into a function inside of a recomputed block, and compiles the function
# without its gradient.
@torch._dynamo.allow_in_graph
class _Emulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: str, *cut: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe, ctx.cut = recipe, cut
        output, *_ = spread_factors(*cut)
        lhs, rhs = _rounded(RECIPES[recipe].output, x, weight, output)
        return (lhs @ rhs.mT).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        recipe = RECIPES[ctx.recipe]
        _, grad_input, grad_weight = spread_factors(*ctx.cut)
        lhs, rhs = _rounded(recipe.grad_input, gradient, weight.mT, grad_input)
        by_x = (lhs @ rhs.mT).to(x.dtype)
        lhs, rhs = _rounded(recipe.grad_weight, gradient.mT, x.mT, grad_weight)
        return by_x, (lhs @ rhs.mT).to(weight.dtype), None, *(None for _ in ctx.cut)


@torch._dynamo.allow_in_graph
class _EmulatedGrouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor, recipe: str) -> Tensor:
        ctx.save_for_backward(x, weight, counts)
        ctx.recipe = recipe
        lhs, rhs = _rounded(RECIPES[recipe].output, x, weight)
        return looped_mm(lhs, rhs.mT, counts).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts = ctx.saved_tensors
        recipe = RECIPES[ctx.recipe]
        lhs, rhs = _rounded(recipe.grad_input, gradient, weight.mT)
        by_x = looped_mm(lhs, rhs.mT, counts).to(x.dtype)
        runs = Runs(group_of_rows(counts, len(x)), counts)
        lhs, rhs = _rounded(recipe.grad_weight, gradient, x, runs=runs)
        return by_x, looped_mm_of_rows(lhs, rhs, counts).to(weight.dtype), None, None


def _rounded(
    how: tuple[Round, Round] | None,
    left: Tensor,
    right: Tensor,
    spread: Factors = (None, None),
    runs: Runs | None = None,
) -> tuple[Tensor, Tensor]:
    if how is None:
        return in_sum_format(left), in_sum_format(right)
    options = [{"spread": factor} if factor else {} for factor in spread]
    return how[0](left, runs, **options[0]), how[1](right, runs, **options[1])
