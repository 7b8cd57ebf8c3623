"""Mamba-2 layers: token mixers with a state of fixed size for texts of any length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mamba2 import Mamba2 as Mamba2Config
from forge.models.cache import LayerCache
from forge.models.mixers.causal_conv import ConvolutionMixer, wide
from forge.models.mixers.state_space import Inputs, scan_chunks, scan_tokens
from forge.models.norm import eps_for
from forge.models.rope import Rotation

KEPT_NAMES = {"wc": "query_proj", "wb": "key_proj", "wx": "value_proj", "wo": "out_proj"}
KEPT_NAMES |= dict.fromkeys(("wz", "wdt"), "gdn_gates")
"""Names of the modules' outputs in `train.recompute`; c reads as a query, b writes as a key."""


class GatedGroupNorm(nn.Module):
    """An RMSNorm of each group of channels, of inputs times SiLU of their gates.

    group: channels of a group. weight: of all channels.
    """

    def __init__(self, width: int, group: int, eps: float | None) -> None:
        super().__init__()
        self.group, self.eps = group, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate: [batch, seq, width]."""
        x = wide(x) * F.silu(wide(gate))
        y = x * (self.mean_square(x) + eps_for(self, x)).rsqrt()
        return y.to(self.weight.dtype) * self.weight

    def mean_square(self, x: Tensor) -> Tensor:
        """The mean of squares in the group of each channel, as x."""
        squares = x.square().unflatten(-1, (-1, self.group)).mean(-1, keepdim=True)
        return squares.expand(*squares.shape[:-1], self.group).flatten(-2)


class Mamba2(ConvolutionMixer):
    """A state space (arXiv:2405.21060) over short convolutions of its inputs, with gated and
    normalised output, as in Granite 4 and Nemotron-H.
    """

    kept_names = KEPT_NAMES

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        mixer, dim = section.mixer, section.dim
        assert isinstance(mixer, Mamba2Config)
        self.section, heads, taps = mixer, mixer.ssm_num_heads, mixer.ssm_conv_kernel_dim
        inner, state, bias = mixer.inner_width, mixer.state_width, mixer.ssm_proj_bias
        widths = (inner, state, state)
        self.conv_x, self.conv_b, self.conv_c = (
            nn.Parameter(torch.ones(width, taps)) for width in widths
        )
        self.conv_x_bias, self.conv_b_bias, self.conv_c_bias = (
            nn.Parameter(torch.zeros(width)) if mixer.ssm_conv_bias else None for width in widths
        )
        self.a_log, self.dt_bias, self.d = (nn.Parameter(torch.ones(heads)) for _ in range(3))
        self.wz = nn.Linear(dim, inner, bias=bias)
        self.wx = nn.Linear(dim, inner, bias=bias)
        self.wb = nn.Linear(dim, state, bias=bias)
        self.wc = nn.Linear(dim, state, bias=bias)
        self.wdt = nn.Linear(dim, heads, bias=bias)
        self.norm = GatedGroupNorm(inner, inner // mixer.ssm_n_groups, section.norm_eps)
        self.wo = nn.Linear(inner, dim, bias=bias)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the state after the earlier
        tokens. places: [batch, seq], positions of tokens in documents that share rows.
        """
        # A tail of each convolution, for x, b and c, then the state.
        *tails, state = cache.held if cache is not None and cache.held else (None,) * 4
        convolved = self.convolve(
            [self.wx(x), self.wb(x), self.wc(x)],
            [self.conv_x, self.conv_b, self.conv_c],
            [self.conv_x_bias, self.conv_b_bias, self.conv_c_bias],
            tails,
            places,
        )
        inner, b, c = (channels for channels, _ in convolved)
        inputs = self.inputs(inner, b, c, self.steps(x), places)
        heads, state = self.read(inputs, state)
        if cache is not None:
            cache.keep(x.shape[1], *(tail for _, tail in convolved), state)
        heads = heads + inputs.x * wide(self.d).unsqueeze(-1)
        return self.wo(self.norm(heads.flatten(2), self.wz(x)))

    def steps(self, x: Tensor) -> Tensor:
        """Steps of the heads by a token, [batch, seq, heads]."""
        section = self.section
        raw = wide(self.wdt(x)) + wide(self.dt_bias)
        # In a compiled block the gradient of torch's softplus has strides the compiler does not
        # expect (torch 2.13).
        step = torch.logaddexp(raw, raw.new_zeros(()))
        if section.ssm_time_step_min or section.ssm_time_step_max is not None:
            step = step.clamp(section.ssm_time_step_min, section.ssm_time_step_max)
        return step

    def inputs(
        self, inner: Tensor, b: Tensor, c: Tensor, step: Tensor, places: Tensor | None
    ) -> Inputs:
        """The inputs of the recurrence, cut into heads and groups."""
        state = self.section.ssm_state_size
        return Inputs(
            x=inner.unflatten(-1, (-1, self.section.ssm_head_dim)),
            b=b.unflatten(-1, (-1, state)),
            c=c.unflatten(-1, (-1, state)),
            step=step,
            decay=-wide(self.a_log).exp() * step,
            begins=None if places is None else places == 0,
        )

    def read(self, inputs: Inputs, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Outputs of all heads, [batch, seq, heads, width], and the last state."""
        if inputs.x.shape[1] == 1:
            return scan_tokens(inputs, state)
        return scan_chunks(inputs, self.section.ssm_chunk_size, state)
