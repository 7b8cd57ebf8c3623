"""The output head as losses and sampling read it."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor


class Head:
    """Logits of hidden states from the rows of the vocabulary that this rank holds, here all.

    A model that is laid out over ranks may have a method `spread_head`, which gives a subclass that
    also reaches the rows of other ranks. first: token id of the first row. vocab_size: all rows.
    """

    first = 0

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.vocab_size = weight, weight.shape[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [..., dim] -> [..., vocab], with gradients."""
        return F.linear(hidden, self.weight)

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
