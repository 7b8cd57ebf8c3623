"""Integers of 8 bits, by torchao on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from forge.config.quantization import PRODUCTS
from forge.config.quantization import Int8 as Int8Section
from forge.quantization.emulation import RECIPES, Recipe, emulated, emulated_grouped
from forge.quantization.products import Products
from forge.quantization.rounding import int8_of_rows
from forge.tensors import torchao_adapter


class Int8(Products):
    """The products in quantization.products with int8 factors; experts are emulated everywhere."""

    def __init__(self, section: Int8Section, device: torch.device) -> None:
        super().__init__(section, device)
        chosen = {name: name in section.products for name in PRODUCTS}
        self.recipe = "int8/" + ",".join(section.products)
        rounds = (int8_of_rows, int8_of_rows)
        RECIPES[self.recipe] = Recipe(*(rounds if chosen[name] else None for name in PRODUCTS))
        self.int8_mm: Any = None
        if not section.emulate:
            self.int8_mm = MULTIPLY[self.recipe] = torchao_adapter.int8_product()

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.int8_mm is None:
            return emulated(x, weight, self.recipe)
        return _ByTorchao.apply(x.flatten(0, -2), weight, self.recipe).unflatten(0, x.shape[:-1])

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        return emulated_grouped(x, weight, counts, self.recipe)


MULTIPLY: dict[str, Any] = {}
"""torchao's product, by names, which a compiler treats as constants."""


@torch._dynamo.allow_in_graph
class _ByTorchao(torch.autograd.Function):
    """Products by torchao; torchao's own function takes a section unsupported by compilers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        return _product(recipe, "output", x, weight.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_x = _product(ctx.recipe, "grad_input", gradient, weight)
        return by_x, _product(ctx.recipe, "grad_weight", x.T, gradient).T, None


def _product(recipe: str, name: str, left: Tensor, right: Tensor) -> Tensor:
    if name not in recipe:
        return left @ right
    return MULTIPLY[recipe](left.contiguous(), right)
