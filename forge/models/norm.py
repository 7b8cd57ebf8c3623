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
        return make_rms_norm(section, section.dim)
    assert section.norm_type == "layernorm", section.norm_type
    made = LayerNorm(section.dim, eps=section.norm_eps, bias=section.bias)
    made.offset = float(section.norm_unit_offset)
    return made


def make_rms_norm(section: DecoderConfig, width: int) -> RMSNorm:
    made = RMSNorm(width, eps=section.norm_eps)
    made.offset = float(section.norm_unit_offset)
    return made


class RMSNorm(nn.RMSNorm):
    offset = 0.0  # added to the weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        scale = weight.to(x.dtype)
        scale = scale + self.offset if self.offset else scale
        return F.rms_norm(x, self.normalized_shape, scale, self.eps).to(weight.dtype)


class LayerNorm(nn.LayerNorm):
    offset = 0.0

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        bias, scale = None if bias is None else bias.to(x.dtype), weight.to(x.dtype)
        scale = scale + self.offset if self.offset else scale
        return F.layer_norm(x, self.normalized_shape, scale, bias, self.eps).to(weight.dtype)
