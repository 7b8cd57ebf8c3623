"""Several matrices multiplied with the same input, as a single product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class JoinedProduct(torch.autograd.Function):
    """x times the transposed rows of all matrices, [..., in] -> [..., sum of rows].

    Backward sums the input's gradient inside of one product, and makes the gradients of all
    matrices in another one; they are views of its result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *matrices: Tensor) -> Tensor:
        # Backward joins the matrices again: kept, they would be a second copy of the weights.
        ctx.save_for_backward(x, *matrices)
        return F.linear(x, torch.cat(matrices))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *matrices = ctx.saved_tensors
        wants_x, *wanted = ctx.needs_input_grad
        grad_x = grad @ _joined_behind(grad, matrices) if wants_x else None
        if not any(wanted):
            return grad_x, *(None for _ in matrices)
        rows = [len(matrix) for matrix in matrices]
        joined = grad.flatten(0, -2).T @ x.flatten(0, -2)
        parts = zip(joined.split(rows), wanted, strict=True)
        return grad_x, *(part if wants else None for part, wants in parts)


def _joined_behind(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Join matrices again in backward.

    They are read behind the gradient, which is never above infinity: else a compiler joins once
    for both passes, and keeps the copy.
    """
    never = gradient[(0,) * gradient.ndim] > math.inf
    return torch.cat([matrix.masked_fill(never, 0.0) for matrix in matrices])


def joined_product(x: Tensor, layers: Sequence[nn.Linear]) -> list[Tensor]:
    """The output of each layer for x: [..., in], by a single product of their matrices."""
    matrices = [layer.weight for layer in layers]
    outputs = JoinedProduct.apply(x, *matrices).split([len(matrix) for matrix in matrices], -1)
    biases = [layer.bias for layer in layers]
    pairs = zip(outputs, biases, strict=True)
    return [y if bias is None else y + bias for y, bias in pairs]
