"""fp8 products by torchao with weights that FSDP has gathered in fp8."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from forge.quantization.rounding import E4M3
from forge.tensors.torchao_adapter import float8, float8_weight

_parts = cache(float8)


@torch._dynamo.allow_in_graph
class GatheredProduct(torch.autograd.Function):
    """Computes like torchao's Float8Linear: x [..., in] times weight_t [in, out], already in fp8.

    FSDP frees the weight after forward and gathers it again. Kernels want the other layout in
    backward, and a compiler would make that copy in forward and keep it: a second weight that FSDP
    can not free.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_t: Tensor, recipe: str, emulate: bool) -> Tensor:
        ctx.parts = _parts(recipe, emulate=emulate)
        product, config, mm_config = ctx.parts
        return product.forward(ctx, x, weight_t, mm_config, config)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        product, config, mm_config = ctx.parts
        x, weight_t = ctx.saved_tensors
        saved = (x, _copied_behind(gradient, weight_t))
        context = SimpleNamespace(saved_tensors=saved, config=config, linear_mm_config=mm_config)
        of_x, of_weight, *_ = product.backward(context, gradient)
        return of_x, of_weight, None, None


def _copied_behind(gradient: Tensor, weight_t: Any) -> Any:
    """Copy a weight's codes by rows, as backward's kernel reads them.

    They are read behind the gradient, which is never above infinity, so that no compiler copies
    them in forward.
    """
    never = gradient[(0,) * gradient.ndim] > math.inf
    codes = weight_t._data.view(torch.uint8).masked_fill(never, 0).contiguous().view(E4M3)
    kind, role, _ = float8_weight()
    return kind(codes, weight_t._scale, weight_t._orig_dtype, weight_t._linear_mm_config, role)
