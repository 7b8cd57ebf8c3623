"""The feed-forward layer: plain or gated, with the activation that the config names."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as GPT-2 has it (arXiv:1606.08415)."""
    return F.gelu(x, approximate="tanh")


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (Primer, arXiv:2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": relu2,
}


class FeedForward(nn.Module):
    """`w_down(f(w_up(x)))`, or gated `w_down(f(w_gate(x)) * w_up(x))` (arXiv:2002.05202)."""

    def __init__(self, section: DecoderConfig, hidden: int | None = None) -> None:
        """hidden: the width of shared experts, which have no biases; null = the section's."""
        super().__init__()
        dim, bias = section.dim, section.has_mlp_bias and hidden is None
        hidden = section.computed_ffn_hidden_dim if hidden is None else hidden
        self.activation = ACTIVATIONS[section.activation]
        self.w_gate = nn.Linear(dim, hidden, bias=bias) if section.is_gated else None
        self.w_up = nn.Linear(dim, hidden, bias=bias)
        self.w_down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        if self.w_gate is None:
            return self.w_down(self.activation(self.w_up(x)))
        return self.w_down(self.activation(self.w_gate(x)) * self.w_up(x))
