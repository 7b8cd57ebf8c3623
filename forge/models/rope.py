"""Rotary position embedding (RoFormer, arXiv:2104.09864), in the half-rotation layout of Llama."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Rotation = tuple[Tensor, Tensor]
"""Cosine and signed sine of a run of positions, each [seq, 1, head_dim]."""


class RotaryTable(nn.Module):
    """Cosines and sines of all positions, in fp32. They are in no state_dict."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, max_seq_len: int, theta: float) -> None:
        super().__init__()
        self.theta = theta
        for name in ("cos", "sin"):
            table = torch.empty(max_seq_len, 1, head_dim, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the tables, on the CPU, so that every device has the same bits."""
        if self.cos.is_meta:
            return
        max_seq_len, _, head_dim = self.cos.shape
        exponents = torch.arange(0, head_dim, 2, device="cpu", dtype=torch.float32) / head_dim
        frequencies = 1.0 / self.theta**exponents
        positions = torch.arange(max_seq_len, device="cpu", dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos(), angles.sin()
        self.cos.copy_(torch.cat((cos, cos), dim=-1)[:, None])
        self.sin.copy_(torch.cat((-sin, sin), dim=-1)[:, None])

    def forward(self, start: int, seq: int) -> Rotation:
        return self.cos[start : start + seq], self.sin[start : start + seq]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + head_dim/2) of x: [batch, seq, heads, head_dim] by its position's
    angle.

    The sine is signed, so a roll replaces the usual negate-and-swap. In fp32, returned in x's type.
    """
    cos, sin = rotation
    return (x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin).type_as(x)
