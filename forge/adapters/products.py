"""Products with weights in few bits, which are made again for each and kept for none.

A file of its own, as it needs the compiler, which takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from forge.adapters.formats import weight_of
from forge.models.grouped import grouped_mm, looped_mm


# torch 2.11 compiles a function that is looked into, inside of a block that runs again, without
# its gradient.
@torch._dynamo.allow_in_graph
class Linear(torch.autograd.Function):
    """x: [..., in] -> [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.how = how
        return F.linear(x, weight_of(how, parts, x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors  # asked for once, as what runs again needs it
        weight = weight_of(ctx.how, parts, gradient.dtype)
        return gradient @ weight, None, *(None for _ in parts)


@torch._dynamo.allow_in_graph
class OfExperts(torch.autograd.Function):
    """x: [n, in], sorted by expert; counts: rows of each -> [n, out]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, counts: Tensor, grouped: bool, how: str, *parts: Tensor
    ) -> Tensor:
        ctx.save_for_backward(counts, *parts)
        ctx.grouped, ctx.how = grouped, how
        return _product(x, weight_of(how, parts, x.dtype).transpose(1, 2), counts, grouped)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        counts, *parts = ctx.saved_tensors
        weight = weight_of(ctx.how, tuple(parts), gradient.dtype)
        by_x = _product(gradient.contiguous(), weight, counts, ctx.grouped)
        return by_x, None, None, None, *(None for _ in parts)


@torch._dynamo.allow_in_graph
class OfEqualExperts(torch.autograd.Function):
    """x: [experts, rows, in] -> [experts, rows, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.how = how
        return torch.bmm(x, weight_of(how, parts, x.dtype).transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors
        weight = weight_of(ctx.how, parts, gradient.dtype)
        return torch.bmm(gradient, weight), None, *(None for _ in parts)


def _product(x: Tensor, matrices: Tensor, counts: Tensor, grouped: bool) -> Tensor:
    if grouped:
        return grouped_mm(x, matrices, counts.cumsum(0, dtype=torch.int32))
    return looped_mm(x, matrices, counts)
