"""Smear: some of the embedding of the token before, by a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.skips.smear import GATE_CHANNELS
from forge.models.cache import KVCache


class Smear(nn.Module):
    """x_t + scale * sigmoid(gate(x_t)) * x_(t-1); the first token of a text is unchanged."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.channels = min(GATE_CHANNELS, section.dim)
        self.gate = nn.Parameter(torch.zeros(1, self.channels))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(
        self, x: Tensor, positions: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """x: [batch, seq, dim], embeddings. positions: [batch, seq], of the tokens in their texts;
        None = of one text. The cache has the last embedding of the tokens before, and gets that of
        x.
        """
        last = None
        if cache is not None:
            last, cache.last_embedding = cache.last_embedding, x[:, -1:]
        before = self.shifted(x, last)
        if positions is not None:
            before = before.masked_fill((positions == 0).unsqueeze(-1), 0.0)
        gate = F.linear(x[..., : self.channels], self.gate.to(x.dtype)).sigmoid()
        return x + (self.scale.to(x.dtype) * gate).to(x.dtype) * before

    def shifted(self, x: Tensor, last: Tensor | None) -> Tensor:
        """The embedding before each of x: [batch, seq, dim]; before the first `last`, or zeros."""
        first = torch.zeros_like(x[:, :1]) if last is None else last
        return torch.cat((first, x[:, :-1]), 1)
