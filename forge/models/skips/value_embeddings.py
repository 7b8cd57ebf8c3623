"""Value embeddings: a learned vector of the token itself, added to the values of attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.skips.value_embeddings import GATE_CHANNELS

RANGE = 3.0  # of a gate, from 0


class ValueEmbedding(nn.Module):
    """A table of values by token, [vocab, kv_heads * head_dim], and a gate for each head that reads
    the first channels of the layer's input.
    """

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.head_dim, self.channels = section.computed_head_dim, min(GATE_CHANNELS, section.dim)
        # Not an nn.Embedding: tensor parallelism cuts columns here, and rows of embeddings.
        width = section.kv_heads * self.head_dim
        self.weight = nn.Parameter(torch.zeros(section.vocab_size, width))
        self.gate = nn.Linear(self.channels, section.kv_heads, bias=False)

    def forward(self, values: Tensor, x: Tensor, tokens: Tensor) -> Tensor:
        """Add to values: [batch, seq, kv_heads, head_dim]. x: [batch, seq, dim], input of the layer
        with the tokens [batch, seq].
        """
        of_tokens = F.embedding(tokens, self.weight).to(values.dtype)
        gates = RANGE * self.gate(x[..., : self.channels]).sigmoid().to(values.dtype)
        return values + gates.unsqueeze(-1) * of_tokens.unflatten(-1, (-1, self.head_dim))
