"""Layers with quantized products: classes mixed into a model, with unchanged parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder
from forge.config.quantization import Quantization, Quantized, matrix_cuts
from forge.models.experts import Experts
from forge.models.mixin import mix_in
from forge.quantization.products import Blocks, Products


def quantize(
    model: nn.Module,
    section: Quantization,
    architecture: Decoder,
    products: Products,
    over: tuple[int, str] = (1, ""),
) -> None:
    """Let the chosen layers of a model, or of a stage, multiply by `products`, in place.

    over: number and group of the ranks that matrices are cut over.
    """
    modules, cuts = dict(model.named_modules()), matrix_cuts(section, architecture, over[0])
    for name, cut in cuts.items():
        module = modules.get(name)
        if module is None:
            continue  # of another stage
        assert isinstance(section, Quantized), section
        mixin = QuantizedExperts if isinstance(module, Experts) else QuantizedLinear
        multiplied = products if cut is None else products.over_ranks(cut, over[1])
        mix_in(module, mixin, products=multiplied, in_evaluation=section.in_evaluation)


class _Quantized(nn.Module):
    products: Products
    in_evaluation: bool

    @property
    def quantizes(self) -> bool:
        return self.training or self.in_evaluation


class QuantizedLinear(_Quantized):
    """Mixin of nn.Linear, and of the output head."""

    bias: Tensor | None
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x, self.weight)
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply x [..., in] by weight [out, in] -> [..., out]."""
        if not self.quantizes:
            return nn.functional.linear(x, weight)
        return self.products.linear(x, weight)


class QuantizedExperts(_Quantized):
    """Mixin of experts."""

    def multiply(self, x: Tensor, counts: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if not self.quantizes:
            return super().multiply(x, counts)  # type: ignore[misc]
        blocks = Blocks(counts, len(x))

        def product(rows: Tensor, weight: Tensor) -> Tensor:
            output = self.products.grouped(blocks.fill(rows), weight, blocks.counts)
            return blocks.empty(output)

        return product

    def multiply_equal(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self.quantizes:
            return super().multiply_equal(x, weight)  # type: ignore[misc]
        counts = torch.full((len(x),), x.shape[1], device=x.device)
        output = self.multiply(x.flatten(0, 1), counts)(x.flatten(0, 1), weight)
        return output.unflatten(0, x.shape[:2])
