"""Normalisation layers, by name.

A norm computes in the type of the input, fp32 inside the kernel, and returns the type of the
weights: with fp32 hidden states and 16-bit weights the next matrix gets 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig


def make_norm(section: DecoderConfig) -> nn.Module:
    """Make an RMSNorm (arXiv:1910.07467), or a LayerNorm (arXiv:1607.06450) with optional bias."""
    if section.norm_type == "rmsnorm":
        return make_rms_norm(section, section.dim, with_scale=section.norm_with_scale)
    assert section.norm_type == "layernorm", section.norm_type
    weighted: dict[str, bool] = {
        "bias": section.bias,
        "elementwise_affine": section.norm_with_scale,
    }
    norm = LayerNorm(section.dim, eps=section.norm_eps, **weighted)  # type: ignore[arg-type]
    norm.offset = float(section.norm_unit_offset)
    return norm


def make_rms_norm(
    section: DecoderConfig, width: int, *, with_scale: bool = True, eps: float | None = None
) -> RMSNorm:
    """Make an RMSNorm. with_scale: whether the norm has weights. eps: null = the model's."""
    eps = section.norm_eps if eps is None else eps
    norm = RMSNorm(width, eps=eps, elementwise_affine=with_scale)
    norm.offset = float(section.norm_unit_offset)
    return norm


def make_qk_norm(section: DecoderConfig, heads: int) -> nn.Module:
    """Make the norm of queries or keys, [..., heads, head_dim], or an identity."""
    width, with_scale = section.computed_head_dim, section.qk_norm_with_scale
    if not section.qk_norm:
        return nn.Identity()
    if section.qk_norm_width == "head":
        return make_rms_norm(section, width, with_scale=with_scale)
    norm = NormOfHeads(heads * width, eps=section.norm_eps, elementwise_affine=with_scale)
    norm.offset = float(section.norm_unit_offset)
    return norm


def eps_for(norm: Any, x: Tensor) -> float:
    """The epsilon of a norm for x: of the format computed in where the norm states none.

    torch's own choice differs between formats and versions.
    """
    if norm.eps is not None:
        return norm.eps
    return torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps


class RMSNorm(nn.RMSNorm):
    """made: the format returned by a norm without weights; None = of the input."""

    offset = 0.0  # added to the weight
    made: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        eps = eps_for(self, x)
        if self.weight is None:
            y = F.rms_norm(x, self.normalized_shape, None, eps)
            return y if self.made is None else y.to(self.made)
        return F.rms_norm(x, self.normalized_shape, self.scale_of(x), eps).to(self.weight.dtype)

    def scale_of(self, x: Tensor) -> Tensor:
        scale = self.weight.to(x.dtype)
        return scale + self.offset if self.offset else scale


class NormOfHeads(RMSNorm):
    """An RMSNorm over all heads together."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., heads, head_dim]."""
        return super().forward(x.flatten(-2)).view_as(x)


class LayerNorm(nn.LayerNorm):
    """made: as of RMSNorm."""

    offset = 0.0
    made: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, eps = self.weight, self.bias, eps_for(self, x)
        if weight is None:
            y = F.layer_norm(x, self.normalized_shape, None, None, eps)
            return y if self.made is None else y.to(self.made)
        bias, scale = None if bias is None else bias.to(x.dtype), weight.to(x.dtype)
        scale = scale + self.offset if self.offset else scale
        return F.layer_norm(x, self.normalized_shape, scale, bias, eps).to(weight.dtype)


NORMS = (RMSNorm, LayerNorm)
