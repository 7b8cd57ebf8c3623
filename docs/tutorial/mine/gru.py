"""A language model that knows nothing of forge."""

from torch import Tensor, nn


class GRULM(nn.Module):
    def __init__(self, vocab_size: int, dim: int = 64, activation: nn.Module | None = None):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.activation = activation or nn.Identity()
        self.output = nn.Linear(dim, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, seq] -> logits [batch, seq, vocab]."""
        x, _ = self.gru(self.embedding(tokens))
        return self.output(self.activation(x))
