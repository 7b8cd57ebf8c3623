"""The output head as losses and sampling read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """Between -cap and cap, and near 0 as they are: cap * tanh(values / cap)."""
    scaled = values / cap
    return scaled.tanh() * cap if values.requires_grad else scaled.tanh_().mul_(cap)


def weight_of(layer: nn.Module) -> Tensor:
    """What a layer multiplies with, for whoever does so in its place."""
    adapted_weight = getattr(layer, "adapted_weight", None)
    return layer.weight if adapted_weight is None else adapted_weight()  # type: ignore[return-value]


class Head:
    """Logits of hidden states from the rows of the vocabulary that this rank holds, here all.

    A model that is laid out over ranks may have a method `spread_head`, which gives a subclass that
    also reaches the rows of other ranks. first: token id of the first row. vocab_size: all rows.
    multiplier, cap: of logits, as model.logits_multiplier and model.final_logits_soft_cap. product:
    of hidden states with the weight.
    """

    first = 0
    multiplier, cap = 1.0, 0.0

    def __init__(
        self,
        weight: Tensor,
        *,
        multiplier: float = 1.0,
        cap: float = 0.0,
        product: Callable[[Tensor, Tensor], Tensor] = F.linear,
    ) -> None:
        self.weight, self.vocab_size = weight, weight.shape[0]
        self.multiplier, self.cap, self.product = multiplier, cap, product

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., dim] -> [..., vocab], with gradients."""
        return self.shaped(self.product(hidden, self.weight))

    def shaped(self, products: Tensor) -> Tensor:
        """Products with the rows of the weight -> logits: multiplied, then between -cap and cap."""
        logits = products if self.multiplier == 1 else products * self.multiplier
        return soft_cap(logits, self.cap) if self.cap else logits

    def slope(self, logits: Tensor) -> Tensor | float:
        """The derivative of `shaped`, by what it gave."""
        if not self.cap:
            return self.multiplier
        return (logits / self.cap).square_().neg_().add_(1).mul_(self.multiplier)

    def largest(self, values: Tensor) -> Tensor:
        """Elementwise, the largest over all ranks with rows; without gradients."""
        return values

    def total(self, values: Tensor) -> Tensor:
        """Elementwise, the sum over all ranks with rows; without gradients."""
        return values


def head_of(model: Any) -> Head:
    """The head of a model; call it after `hidden`."""
    make = getattr(model, "spread_head", None)
    return make() if make is not None else Head(model.output_weight)
