"""MXFP8, by torchao on Blackwell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forge.config.quantization import MXFP8 as MXFP8Section
from forge.quantization.emulation import RECIPES, Recipe, emulated, emulated_grouped
from forge.quantization.products import Products
from forge.quantization.rounding import mxfp8
from forge.tensors import torchao_adapter

_both = (mxfp8, mxfp8)
RECIPES["mxfp8"] = Recipe(_both, _both, _both)
RECIPES["mxfp8_wgrad_with_hp"] = Recipe(_both, _both, None)


class MXFP8(Products):
    """Products of layers and experts in MXFP8, with the scales of Blackwell (RCEIL)."""

    def __init__(self, section: MXFP8Section, device: torch.device) -> None:
        super().__init__(section, device)
        self.recipe = "mxfp8_wgrad_with_hp" if section.wgrad_with_hp else "mxfp8"
        self.product: Any = None
        self.of_experts: Any = None
        if not section.emulate:
            self.product, self.of_experts = torchao_adapter.mxfp8_products(
                wgrad_with_hp=section.wgrad_with_hp
            )

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.product is None:
            return emulated(x, weight, self.recipe)
        return self.product(x, weight)

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        if self.product is None:
            return emulated_grouped(x, weight, counts, self.recipe)
        ends = counts.cumsum(0, dtype=torch.int32)
        return self.of_experts(x, weight.transpose(1, 2), offs=ends, out_dtype=x.dtype)
