"""Gated short convolutions: token mixers that see a few tokens, as in LFM2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.short_conv import ShortConv as ShortConvConfig
from forge.models.cache import LayerCache
from forge.models.mixers.causal_conv import ConvolutionMixer
from forge.models.rope import Rotation

KEPT_NAMES = {"wb": "query_proj", "wc": "key_proj", "wx": "value_proj", "wo": "out_proj"}
"""Names of the modules' outputs in `train.recompute`."""


class ShortConv(ConvolutionMixer):
    """y = W_o (C * conv(B * X)), with B, C and X projections of the input; no activation."""

    kept_names = KEPT_NAMES
    activated = False

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        mixer, dim = section.mixer, section.dim
        assert isinstance(mixer, ShortConvConfig)
        bias = mixer.conv_bias
        self.conv = nn.Parameter(torch.ones(dim, mixer.conv_kernel_dim))
        self.conv_bias = nn.Parameter(torch.zeros(dim)) if bias else None
        self.wb, self.wc, self.wx = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.wo = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the last tokens that the
        convolution saw. places: [batch, seq], positions of tokens in documents that share rows.
        """
        before = cache.held[0] if cache is not None and cache.held else None
        gated = self.wb(x) * self.wx(x)
        taps, bias = [self.conv], [self.conv_bias]
        ((mixed, tail),) = self.convolve([gated], taps, bias, [before], places)
        if cache is not None:
            cache.keep(x.shape[1], tail)
        return self.wo(self.wc(x) * mixed.to(x.dtype))
