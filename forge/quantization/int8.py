"""Integers of 8 bits, by torchao on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forge.config.quantization import PRODUCTS
from forge.config.quantization import Int8 as Int8Section
from forge.quantization.products import RECIPES, Products, Recipe, emulated, emulated_grouped
from forge.quantization.rounding import int8_of_rows


class Int8(Products):
    """Those of quantization.products with int8 factors; experts are emulated everywhere."""

    def __init__(self, section: Int8Section, device: torch.device) -> None:
        super().__init__(section, device)
        chosen = {name: name in section.products for name in PRODUCTS}
        self.recipe = "int8/" + ",".join(section.products)
        rounds = (int8_of_rows, int8_of_rows)
        RECIPES[self.recipe] = Recipe(*(rounds if chosen[name] else None for name in PRODUCTS))
        self.product: Any = None
        if not section.emulate:
            # torchao takes seconds to import, and not every run has a use for it.
            from torchao.prototype.quantized_training import int8_mixed_precision as torchaos

            self.product = torchaos._Int8MixedPrecisionTrainingLinearFunction
            self.config = torchaos.Int8MixedPrecisionTrainingConfig(**chosen)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.product is None:
            return emulated(x, weight, self.recipe)
        return self.product.apply(x.flatten(0, -2), weight, None, self.config).unflatten(
            0, x.shape[:-1]
        )

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        return emulated_grouped(x, weight, counts, self.recipe)
