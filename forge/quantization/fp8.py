"""fp8, by torchao on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from forge.config.quantization import FP8 as FP8Section
from forge.quantization.emulation import RECIPES, Recipe, emulated, emulated_grouped
from forge.quantization.products import Products
from forge.quantization.rounding import E4M3, E5M2, fp8_of_rows, fp8_of_tensor
from forge.tensors.torchao_adapter import float8, float8_grouped, float8_weight

_tensor = partial(fp8_of_tensor, dtype=E4M3)
_gradient = partial(fp8_of_tensor, dtype=E5M2)
_row = partial(fp8_of_rows, dtype=E4M3)
_tensor_by_power = partial(fp8_of_tensor, dtype=E4M3, power=True)
RECIPES["tensorwise"] = Recipe((_tensor, _tensor), (_gradient, _tensor), (_gradient, _tensor))
RECIPES["rowwise"] = Recipe((_row, _row), (_row, _row), (_row, _row))
RECIPES["rowwise_with_gw_hp"] = Recipe((_row, _row), (_row, _tensor_by_power), None)
OF_EXPERTS = "rowwise"
"""The only scales of the kernels of grouped products."""


class FP8(Products):
    """Products of a layer by quantization.recipe, products of experts with a scale a row."""

    def __init__(self, section: FP8Section, device: torch.device) -> None:
        super().__init__(section, device)
        self.recipe, self.emulate = section.recipe, section.emulate
        self.by_torchao = None
        if not section.emulate or section.fp8_all_gather:
            self.by_torchao = ByTorchao(section.recipe, emulate=section.emulate)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.by_torchao is not None:
            return self.by_torchao(x, weight)
        return emulated(x, weight, self.recipe)

    def over_ranks(self, dim: int, group: str) -> FP8OverRanks:
        return FP8OverRanks(self, dim, group)

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        if self.emulate:
            return emulated_grouped(x, weight, counts, OF_EXPERTS)
        ends = counts.cumsum(0, dtype=torch.int32)
        return float8_grouped()(x, weight.transpose(1, 2), ends, x.dtype)


class FP8OverRanks:
    """Products with this rank's part of a weight [out, in] that is cut in `dim`."""

    def __init__(self, products: FP8, dim: int, group: str) -> None:
        self.recipe, self.emulate, self.cut = products.recipe, products.emulate, (dim, group)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.emulate:
            return emulated(x, weight, self.recipe, *self.cut)
        # Imported here: the compiler comes along, and takes seconds.
        from forge.quantization.fp8_over_ranks import product_over_ranks

        return product_over_ranks(x, weight, self.recipe, *self.cut)


class ByTorchao:
    """Computes like torchao's Float8Linear, also with a weight already in fp8."""

    def __init__(self, recipe: str, *, emulate: bool) -> None:
        self.options = recipe, emulate
        self.product, self.config, self.mm_config = float8(recipe, emulate=emulate)
        self.gathered = Gathered(self.mm_config)

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        if isinstance(weight, self.gathered.kind):
            # Imported here: the compiler comes along, and takes seconds.
            from forge.quantization.fp8_gathered import GatheredProduct

            product: Any = GatheredProduct.apply(x, weight.t(), *self.options)
            return product
        return self.product.apply(x, weight.t(), self.mm_config, self.config)


class Gathered:
    """A weight gathered as the codes of its shards, in the form of torchao's products."""

    def __init__(self, mm_config: Any) -> None:
        self.kind, self.role, self.saturated = float8_weight()
        self.mm_config = mm_config

    def codes(self, values: Tensor, scale: Tensor) -> Tensor:
        return self.saturated(values.float() * scale, E4M3)

    def __call__(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        return self.kind(codes, scale, dtype, self.mm_config, self.role)
