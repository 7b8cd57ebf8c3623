"""The output head as losses and sampling read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def soft_cap(values: Tensor, cap: float) -> Tensor:
    """Bound values smoothly, nearly unchanged around 0: cap * tanh(values / cap)."""
    scaled = values / cap
    return scaled.tanh() * cap if values.requires_grad else scaled.tanh_().mul_(cap)


class OutputHead(nn.Linear):
    """The matrix of a head that shares none with the embedding."""

    def receive(self, hidden: Tensor, norm: nn.Module) -> Tensor:
        """Normalise hidden states; FSDP gathers the weight for this call."""
        return norm(hidden)

    def product(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Multiply hidden: [..., dim] by rows of the vocabulary, [rows, dim] -> [..., rows]."""
        return F.linear(hidden, weight)


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer, with an adapter the adapted weight, for products outside the layer."""
    adapted_weight = getattr(layer, "adapted_weight", None)
    return layer.weight if adapted_weight is None else adapted_weight()  # type: ignore[return-value]


class Head:
    """Logits of hidden states from this rank's rows of the vocabulary; in this class all rows.

    A model laid out over ranks may have a method `spread_head` that returns a subclass with access
    to the rows of other ranks. first: token id of the first row. vocab_size: all rows. multiplier,
    cap: of logits, as model.logits_multiplier and model.final_logits_soft_cap. product: of hidden
    states with the weight.
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
        """Turn products with the weight into logits: multiplied, then between -cap and cap."""
        logits = products if self.multiplier == 1 else products * self.multiplier
        return soft_cap(logits, self.cap) if self.cap else logits

    def slope(self, logits: Tensor) -> Tensor | float:
        """The derivative of `shaped`, from the result of `shaped`."""
        if not self.cap:
            return self.multiplier
        # d tanh(x) = 1 - tanh(x)^2, and logits / cap is the tanh; the cap cancels.
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
