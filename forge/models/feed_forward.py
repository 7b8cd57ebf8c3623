"""The feed-forward layer: plain or gated, with the activation that the config names."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import has_expert_bias
from forge.tensors.joined_product import joined_product


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU in its tanh approximation, as GPT-2 has it (arXiv:1606.08415)."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """GELU by a sigmoid (arXiv:1606.08415, section 2), as gpt-oss has it."""
    return x * torch.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (Primer, arXiv:2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu2": relu2,
}


class Activation:
    """The function between the matrices: `f(up)`, or gated `f(gate) * (up + offset)`, with up and
    gate clamped to a limit (gpt-oss, arXiv:2508.10925).
    """

    def __init__(self, section: DecoderConfig) -> None:
        self.function = ACTIVATIONS[section.activation]
        self.limit, self.offset = section.mlp_activations_limit, section.mlp_up_offset

    def __call__(self, up: Tensor, gate: Tensor | None = None) -> Tensor:
        """up, gate: [..., hidden] -> [..., hidden]."""
        if gate is None:
            return self.function(self._limited(up))
        # As in gpt-oss up is clamped on both sides, the gate from above alone.
        if self.limit:
            up = up.clamp(-self.limit, self.limit)
        if self.offset:
            up = up + self.offset
        return self.function(self._limited(gate)) * up

    def _limited(self, x: Tensor) -> Tensor:
        return x.clamp(max=self.limit) if self.limit else x


def kept_names(*, gated: bool) -> dict[str, str]:
    """Names of the matrices' outputs in `train.recompute`."""
    input_matrices = ("w_gate", "w_up") if gated else ("w_up",)
    return {matrix: f"mlpwi_{n}" for n, matrix in enumerate(input_matrices)} | {"w_down": "mlpwo"}


class FeedForward(nn.Module):
    """`w_down(f(w_up(x)))`, or gated `w_down(f(w_gate(x)) * w_up(x))` (arXiv:2002.05202)."""

    def __init__(self, section: DecoderConfig, shared: int = 0) -> None:
        """shared: the width of shared experts; 0 = a layer of the section's width."""
        super().__init__()
        dim, bias = section.dim, has_expert_bias(section) if shared else section.has_mlp_bias
        hidden = shared or section.computed_ffn_hidden_dim
        self.activation = Activation(section)
        self.kept_names = kept_names(gated=section.is_gated)
        self.fused = section.fused_gate_up
        self.w_gate = nn.Linear(dim, hidden, bias=bias) if section.is_gated else None
        self.w_up = nn.Linear(dim, hidden, bias=bias)
        self.w_down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        return self.w_down(self.activation(*self.input_products(x)))

    def input_products(self, x: Tensor) -> list[Tensor]:
        """The outputs of w_up and, if there is one, w_gate for x: [batch, seq, dim]."""
        layers = [self.w_up] if self.w_gate is None else [self.w_up, self.w_gate]
        if self.fused:
            return joined_product(x, layers)
        return [layer(x) for layer in layers]
