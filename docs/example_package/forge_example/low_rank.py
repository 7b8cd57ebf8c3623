"""A feed-forward layer that begins with a matrix of low rank (arXiv:2407.09835)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from forge.api import DecoderSection


class LowRank(nn.Module):
    def __init__(self, section: DecoderSection) -> None:
        super().__init__()
        rank, hidden = section.feed_forward.rank, section.computed_ffn_hidden_dim
        self.w_in = nn.Linear(section.dim, rank, bias=False)
        self.w_up = nn.Linear(rank, hidden, bias=False)
        self.w_down = nn.Linear(hidden, section.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        return self.w_down(F.silu(self.w_up(self.w_in(x))))
