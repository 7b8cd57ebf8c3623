"""A language model of gated causal convolutions (Dauphin et al. 2017, arXiv:1612.08083)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from forge_example.conf import GatedConv as GatedConvConfig


class Block(nn.Module):
    """A convolution over this token and those before it, half of whose outputs gate the other half,
    added to the stream.
    """

    def __init__(self, section: GatedConvConfig, dilation: int) -> None:
        super().__init__()
        self.reach = (section.kernel_size - 1) * dilation
        self.norm = nn.RMSNorm(section.dim)
        self.convolution = nn.Conv1d(
            section.dim, 2 * section.dim, section.kernel_size, dilation=dilation
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        past = F.pad(self.norm(x).transpose(1, 2), (self.reach, 0))
        return x + F.glu(self.convolution(past), dim=1).transpose(1, 2)


class GatedConv(nn.Module):
    """Token ids to next-token logits; the output head is the embedding table."""

    def __init__(self, section: GatedConvConfig) -> None:
        super().__init__()
        self.max_seq_len = section.max_seq_len
        self.fan_in = section.dim * section.kernel_size
        self.embedding = nn.Embedding(section.vocab_size, section.dim)
        self.blocks = nn.ModuleDict(
            {str(layer): Block(section, 2**layer) for layer in range(section.n_layers)}
        )
        self.norm = nn.RMSNorm(section.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]."""
        return F.linear(self.hidden(tokens), self.output_weight)

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> [batch, seq, dim]."""
        x = self.embedding(tokens)
        for block in self.blocks.values():
            x = block(x)
        return self.norm(x)

    @property
    def output_weight(self) -> Tensor:
        """[vocab, dim]"""
        return self.embedding.weight

    def init_std(self, name: str) -> float:
        """Standard deviation of the initial values of a parameter."""
        return 0.02 if name.startswith("embedding") else self.fan_in**-0.5

    def reset_buffers(self) -> None:
        """There are none."""
