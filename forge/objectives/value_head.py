"""A value of each token, read from the hidden states of a policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.model.tensors import TensorSpec

NAME = "value_head"


class ValueHead(nn.Module):
    """The product of hidden states with a vector, in fp32 or wider."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [batch, seq, dim] -> values, [batch, seq]."""
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # No matrix product: autocast would round it to 16 bits.
        return (hidden.to(dtype) * self.weight.to(dtype)).sum(-1)


def add_value_head(model: Any, specs: Iterable[TensorSpec]) -> None:
    """Give a whole decoder on the meta device the value head that its objective adds, if any.

    specs: as in `Objective.added`; the head begins with zeros.
    """
    for spec in specs:
        model.value_head = ValueHead(*spec.shape)
        model.table |= {spec.name: spec}
