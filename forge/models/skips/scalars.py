"""Learned numbers that hidden states are multiplied by, and added with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def scalar(wanted: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(1)) if wanted else None


def rescaled(
    x: Tensor, residual: Tensor | None, x0_scalar: Tensor | None, x0: Tensor | None
) -> Tensor:
    """residual * x + x0_scalar * x0, as far as there are scalars. x, x0: [batch, seq, dim]."""
    if residual is not None:
        x = residual.to(x.dtype) * x
    if x0_scalar is None:
        return x
    assert x0 is not None
    return x + x0_scalar.to(x.dtype) * x0


class Backout(nn.Module):
    """x - scale * middle: takes off hidden states of the middle layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, middle: Tensor) -> Tensor:
        """x, middle: [batch, seq, dim]."""
        return x - self.scale.to(x.dtype) * middle
