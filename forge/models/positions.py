"""Positions that are added to the embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

BASE = 10000.0


class Positions(nn.Embedding):
    """A table of learned positions."""


class Sinusoids(nn.Module):
    """Sines, then cosines, of angles from 1 down to 1/10000 a position (tensor2tensor's form of
    arXiv:1706.03762, section 3.5). In no state_dict.
    """

    table: Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(length, dim), persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the table, on the CPU, so that every device has the same bits."""
        if self.table.is_meta:
            return
        length, dim = self.table.shape
        index = torch.arange(dim // 2, device="cpu", dtype=torch.float32)
        periods = torch.exp(index * (math.log(BASE) / max(dim // 2 - 1, 1)))
        positions = torch.arange(length, device="cpu", dtype=torch.float32)
        angles = positions[:, None] / periods
        self.table.copy_(torch.cat((angles.sin(), angles.cos()), 1))

    def forward(self, index: Tensor) -> Tensor:
        """index: [..., seq] -> [..., seq, dim]."""
        return self.table[index]
