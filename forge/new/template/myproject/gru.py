"""A language model: token ids to the logits of each next token."""

from __future__ import annotations

from torch import Tensor, nn


class GRU(nn.Module):
    """A gated recurrent network. forge gives the tokenizer's vocab_size; the others are options."""

    def __init__(self, vocab_size: int, width: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.network = nn.GRU(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]."""
        hidden, _ = self.network(self.embedding(tokens))
        return self.head(hidden)
