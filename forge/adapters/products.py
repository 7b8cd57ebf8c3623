"""Products with weights in few bits, unpacked for each product and stored for none.

A separate file: the compiler behind these products takes seconds to import.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

from forge.adapters.formats import unpack_weight
from forge.models.grouped import grouped_mm, looped_mm


# torch 2.11 traces into a function inside of a recomputed block, and compiles the function
# without its gradient.
@torch._dynamo.allow_in_graph
class Linear(torch.autograd.Function):
    """A product x [..., in] -> [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.how = how
        return F.linear(x, unpack_weight(how, parts, x.dtype, x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors  # read once: a recomputed block allows a single read
        weight = unpack_weight(ctx.how, parts, gradient.dtype, gradient)
        return gradient @ weight, None, *(None for _ in parts)


@torch._dynamo.allow_in_graph
class GroupedProduct(torch.autograd.Function):
    """A product x [n, in], sorted by expert, -> [n, out]; counts: rows of each expert."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, counts: Tensor, grouped: bool, how: str, *parts: Tensor
    ) -> Tensor:
        ctx.save_for_backward(counts, *parts)
        ctx.grouped, ctx.how = grouped, how
        return _product(x, unpack_weight(how, parts, x.dtype, x).transpose(1, 2), counts, grouped)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        counts, *parts = ctx.saved_tensors
        weight = unpack_weight(ctx.how, tuple(parts), gradient.dtype, gradient)
        by_x = _product(gradient.contiguous(), weight, counts, ctx.grouped)
        return by_x, None, None, None, *(None for _ in parts)


@torch._dynamo.allow_in_graph
class EqualGroupsProduct(torch.autograd.Function):
    """A product x [experts, rows, in] -> [experts, rows, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.how = how
        return torch.bmm(x, unpack_weight(how, parts, x.dtype, x).transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors
        weight = unpack_weight(ctx.how, parts, gradient.dtype, gradient)
        return torch.bmm(gradient, weight), None, *(None for _ in parts)


def _product(x: Tensor, matrices: Tensor, counts: Tensor, grouped: bool) -> Tensor:
    if grouped:
        return grouped_mm(x, matrices, counts.cumsum(0, dtype=torch.int32))
    return looped_mm(x, matrices, counts)
