"""MXFP8, by torchao on Blackwell."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from forge.config.quantization import MXFP8 as MXFP8Section
from forge.quantization.emulation import RECIPES, Recipe, emulated, emulated_grouped
from forge.quantization.products import Products
from forge.quantization.rounding import mxfp8

_both = (mxfp8, mxfp8)
RECIPES["mxfp8"] = Recipe(_both, _both, _both)
RECIPES["mxfp8_wgrad_with_hp"] = Recipe(_both, _both, None)


class MXFP8(Products):
    """Products of layers and experts in MXFP8, with the scales of Blackwell (RCEIL)."""

    def __init__(self, section: MXFP8Section, device: torch.device) -> None:
        super().__init__(section, device)
        self.recipe = "mxfp8_wgrad_with_hp" if section.wgrad_with_hp else "mxfp8"
        self.product: Any = None
        if not section.emulate:
            # torchao takes seconds to import, and only some runs need torchao.
            from torchao.prototype.moe_training.mxfp8_grouped_mm import (
                _to_mxfp8_then_scaled_grouped_mm,
            )
            from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
            from torchao.prototype.mx_formats.config import ScaleCalculationMode
            from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

            common = {
                "kernel_preference": KernelPreference.AUTO,
                "scale_calculation_mode": ScaleCalculationMode.RCEIL,
                "wgrad_with_hp": section.wgrad_with_hp,
            }
            self.product = partial(_to_mxfp8_then_scaled_mm, **common)
            self.of_experts: Any = partial(_to_mxfp8_then_scaled_grouped_mm, **common)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.product is None:
            return emulated(x, weight, self.recipe)
        return self.product(x, weight)

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        if self.product is None:
            return emulated_grouped(x, weight, counts, self.recipe)
        ends = counts.cumsum(0, dtype=torch.int32)
        return self.of_experts(x, weight.transpose(1, 2), offs=ends, out_dtype=x.dtype)
