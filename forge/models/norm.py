"""Normalisation layers, by name.

Each computes in the type of its input, fp32 inside its kernel, and gives the type of its weights:
with fp32 hidden states and 16-bit weights the next matrix gets 16 bits.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig


def make_norm(section: DecoderConfig) -> nn.Module:
    """RMSNorm (arXiv:1910.07467) or LayerNorm (arXiv:1607.06450), which may have a bias."""
    if section.norm_type == "rmsnorm":
        return RMSNorm(section.dim, eps=section.norm_eps)
    assert section.norm_type == "layernorm", section.norm_type
    return LayerNorm(section.dim, eps=section.norm_eps, bias=section.bias)


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.weight, None)

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, weight.to(x.dtype), self.eps).to(weight.dtype)


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.weight, self.bias)

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(x.dtype)
        y = F.layer_norm(x, self.normalized_shape, weight.to(x.dtype), bias, self.eps)
        return y.to(weight.dtype)
