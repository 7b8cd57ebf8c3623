"""Normalisation layers, by name."""

from __future__ import annotations

from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig


def make_norm(section: DecoderConfig) -> nn.Module:
    """The normalisation over the last dimension of [batch, seq, dim] that `norm_type` names.

    RMSNorm (arXiv:1910.07467) has a weight only; LayerNorm (arXiv:1607.06450) has a bias too when `bias` is true.
    """
    if section.norm_type == "rmsnorm":
        return nn.RMSNorm(section.dim, eps=section.norm_eps)
    if section.norm_type == "layernorm":
        return nn.LayerNorm(section.dim, eps=section.norm_eps, bias=section.bias)
    raise ValueError(f"model.norm_type={section.norm_type!r}: must be rmsnorm or layernorm")


class HeadNorm(nn.RMSNorm):
    """RMSNorm of each head on its own: x: [batch, seq, heads, head_dim] -> the same, in x's type.

    Computed in the weight's fp32: under autocast x is bf16, and torch has no fused kernel for the mix.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).type_as(x)
