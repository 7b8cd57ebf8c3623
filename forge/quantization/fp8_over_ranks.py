"""fp8 products by torchao with parts of weights on each rank, and scales of whole tensors or rows.

The products of torchao's Float8Linear, which casts a factor in one go: here ranks agree on the
largest values between the two halves of a cast.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from forge.quantization.over_ranks import spread_factors
from forge.quantization.rounding import Spread, largest_of
from forge.tensors.torchao_adapter import float8, float8_casts


def product_over_ranks(
    x: Tensor, weight: Tensor, recipe: str, dim: int, group: str, *, emulate: bool = False
) -> Tensor:
    """Multiply x [..., in] by this rank's part of weight [out, in], cut in `dim` -> [..., out].

    emulate: torchao's own emulation of the kernels.
    """
    flat = x.flatten(0, -2)
    product: Any = _Product.apply(flat, weight.t(), recipe, emulate, dim, group)
    return product.unflatten(0, x.shape[:-1])


class Casts:
    """The casts of a recipe, by their names in torchao's Float8LinearConfig."""

    def __init__(self, recipe: str, *, emulate: bool) -> None:
        _, self.config, self.mm_config = float8(recipe, emulate=emulate)
        self.parts = float8_casts()

    def scale(self, name: str, values: Tensor, axis: int, spread: Spread | None) -> Tensor | None:
        """The scale of all ranks' values; None = they are not cast. axis: summed in the product."""
        how = getattr(self.config, f"cast_config_{name}")
        if how.scaling_type is self.parts.disabled:
            return None
        by_row = how.scaling_granularity is self.parts.by_row
        largest = values.abs().amax(axis, keepdim=True) if by_row else values.abs().max()
        if spread is not None and (spread.summed or not by_row):
            largest = largest_of(largest, spread.group)
        power = self.config.round_scales_to_power_of_2
        return self.parts.scale(largest, how.target_dtype, round_scales_to_power_of_2=power)

    def cast(self, name: str, values: Tensor, scale: Tensor | None, axis: int, role: str) -> Any:
        """Values in fp8, or as they are without a scale."""
        if scale is None:
            return values
        how, by_row = getattr(self.config, f"cast_config_{name}"), scale.ndim > 0
        which = getattr(self.parts.roles, role)
        arguments = (how.target_dtype, self.mm_config, which, axis if by_row else None)
        return self.parts.cast(values, scale, *arguments)

    def same(self, first: str, second: str) -> bool:
        """Whether two casts of a tensor have the same single scale."""
        former, latter = (getattr(self.config, f"cast_config_{name}") for name in (first, second))
        return former == latter and former.scaling_granularity is not self.parts.by_row


casts = cache(Casts)


@torch._dynamo.allow_in_graph
class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_t: Tensor, recipe: str, emulate: bool, dim: int, group: str
    ) -> Tensor:
        how, (output, _, _) = casts(recipe, emulate=emulate), spread_factors(dim, group)
        of_x = how.scale("input", x, -1, output[0])
        of_weight = how.scale("weight", weight_t, 0, output[1])
        lhs = how.cast("input", x, of_x, -1, "INPUT")
        rhs = how.cast("weight", weight_t, of_weight, 0, "WEIGHT")
        # Scales of whole tensors serve backward too, without another agreement.
        keep_x = how.same("input", "input_for_grad_weight")
        keep_weight = how.same("weight", "weight_for_grad_input")
        ctx.save_for_backward(
            x, weight_t, of_x if keep_x else None, of_weight if keep_weight else None
        )
        ctx.options = recipe, emulate, dim, group
        return torch.mm(lhs, rhs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_t, of_x, of_weight = ctx.saved_tensors
        recipe, emulate, *cut = ctx.options
        how, (_, by_x, by_weight) = casts(recipe, emulate=emulate), spread_factors(*cut)
        name, role = "grad_output", "GRAD_OUTPUT"
        of_gradient = how.scale(name, gradient, -1, by_x[0])
        lhs = how.cast(name, gradient, of_gradient, -1, role)
        name = "weight_for_grad_input"
        if of_weight is None:
            of_weight = how.scale(name, weight_t, -1, by_x[1])
        rhs = how.cast(name, weight_t, of_weight, -1, "WEIGHT")
        grad_input = torch.mm(lhs, rhs.t())
        name = "grad_output_for_grad_weight"
        if not how.same("grad_output", name):
            of_gradient = how.scale(name, gradient, 0, by_weight[0])
        lhs = how.cast(name, gradient, of_gradient, 0, role)
        name = "input_for_grad_weight"
        if of_x is None:
            of_x = how.scale(name, x, 0, by_weight[1])
        rhs = how.cast(name, x, of_x, 0, "INPUT")
        return grad_input, torch.mm(lhs.t(), rhs).t(), None, None, None, None
