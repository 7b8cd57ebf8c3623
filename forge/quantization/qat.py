"""Quantization-aware training: rounded factors of products, unrounded gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from forge.config.quantization import QAT as QATSection
from forge.models.grouped import grouped_mm, looped_mm
from forge.quantization.products import Products

TOKEN_BITS = 8


class QAT(Products):
    """Products with fake quantization, as in torchao's FakeQuantizedLinear.

    Tokens are int8 with a scale and a zero each; weights have a scale for each group of a row.
    """

    def __init__(self, section: QATSection, device: torch.device) -> None:
        super().__init__(section, device)
        self.bits, self.group = section.weight_bits, section.group_size
        self.rounds_tokens = section.quantize_activations

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(self.tokens(x), of_groups(weight, self.bits, self.group))

    def grouped(self, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        matrices = of_groups(weight, self.bits, self.group).transpose(1, 2)
        if x.dtype == torch.bfloat16:
            return grouped_mm(self.tokens(x), matrices, counts.cumsum(0, dtype=torch.int32))
        return looped_mm(self.tokens(x), matrices, counts)

    def tokens(self, x: Tensor) -> Tensor:
        return of_tokens(x) if self.rounds_tokens else x


def of_tokens(x: Tensor) -> Tensor:
    """Round to integers of 8 bits from the least to the largest value of a token and 0."""
    with torch.no_grad():
        low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
        least, most = _range(TOKEN_BITS)
        scale = ((high - low) / (most - least)).clamp(min=torch.finfo(torch.float32).eps)
        zero = (least - (low / scale).round()).clamp(least, most)
    return _Rounded.apply(x, scale, zero, least, most)


def of_groups(weight: Tensor, bits: int, group: int) -> Tensor:
    """Round to integers with a scale for each group of adjacent weights of a row."""
    groups = weight.unflatten(-1, (-1, group))
    with torch.no_grad():
        least, most = _range(bits)
        scale = groups.abs().amax(-1, keepdim=True) / ((most - least) / 2)
        scale = scale.clamp(min=torch.finfo(torch.float32).eps)
    return _Rounded.apply(groups, scale, torch.zeros_like(scale), least, most).flatten(-2)


def _range(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


@torch._dynamo.allow_in_graph
class _Rounded(torch.autograd.Function):
    """Rounding forward; backward the gradient of the values inside of the range."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, scale: Tensor, zero: Tensor, least: int, most: int
    ) -> Tensor:
        codes = (values * (1.0 / scale)).round() + zero
        ctx.save_for_backward((codes >= least) & (codes <= most))
        return ((codes.clamp(least, most) - zero) * scale).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient * inside, None, None, None, None
