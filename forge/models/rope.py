"""Rotary position embedding (RoFormer, arXiv:2104.09864), in the half-rotation layout of Llama."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig

Rotation = tuple[Tensor, Tensor]
"""Cosine and signed sine of some positions, each [seq, 1, rotary_dim], or of those of each row,
[batch, seq, 1, rotary_dim].
"""


class RotaryTable(nn.Module):
    """Cosines and sines of all positions, in fp32. They are in no state_dict."""

    cos: Tensor
    sin: Tensor

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.section = section
        shape = (section.max_seq_len, 1, section.rotary_dim)
        for name in ("cos", "sin"):
            table = torch.empty(*shape, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        """Compute the tables, on the CPU, so that every device has the same bits."""
        if self.cos.is_meta:
            return
        positions = torch.arange(len(self.cos), device="cpu", dtype=torch.float32)
        angles = torch.outer(positions, frequencies(self.section))
        cos, sin = (rotary_scale(self.section) * table for table in (angles.cos(), angles.sin()))
        self.cos.copy_(torch.cat((cos, cos), dim=-1)[:, None])
        self.sin.copy_(torch.cat((-sin, sin), dim=-1)[:, None])

    def forward(self, start: int, seq: int) -> Rotation:
        return self.cos[start : start + seq], self.sin[start : start + seq]

    def at(self, positions: Tensor) -> Rotation:
        """positions: [batch, seq]."""
        return self.cos[positions], self.sin[positions]


def frequencies(section: DecoderConfig) -> Tensor:
    """The angle of one position for each pair, [rotary_dim / 2], in fp32.

    Stretched, a slow pair has 1 / rope_factor of its angle, a fast one all of it. Between them
    Llama 3.1 blends by a pair's turns (arXiv:2407.21783), YaRN by its index (arXiv:2309.00071).
    """
    dim, length = section.rotary_dim, section.original_max_position_embeddings
    exponents = torch.arange(0, dim, 2, device="cpu", dtype=torch.float32) / dim
    periods = section.rope_theta**exponents
    angles = 1.0 / periods
    if section.rope_type == "default":
        return angles
    slow, fast = section.beta_slow, section.beta_fast
    if section.rope_type == "llama3.1":
        kept = _ramp(length * angles / (2 * math.pi), slow, fast)
    else:
        first, last = (_pair_with(turns, section) for turns in (fast, slow))
        if section.rope_truncate:
            first, last = math.floor(first), math.ceil(last)
        index = torch.arange(dim // 2, device="cpu", dtype=torch.float32)
        kept = 1 - _ramp(index, max(first, 0), min(last, dim - 1))
    return 1.0 / (section.rope_factor * periods) * (1 - kept) + angles * kept


def _pair_with(turns: float, section: DecoderConfig) -> float:
    """The index of the pair that makes so many turns in the original length, not rounded."""
    length = section.original_max_position_embeddings
    per_turn = math.log(length / (turns * 2 * math.pi)) / math.log(section.rope_theta)
    return section.rotary_dim * per_turn / 2


def _ramp(x: Tensor, low: float, high: float) -> Tensor:
    """0 up to low, 1 from high on, and linear between; a step where they are equal."""
    return ((x - low) / (high - low or 0.001)).clamp(0, 1)


def rotary_scale(section: DecoderConfig) -> float:
    """What cosines and sines are multiplied by."""
    return _yarn_scale(section) if section.rope_attention_scaling else 1.0


def softmax_scale(section: DecoderConfig, width: int) -> float:
    """What the scores of queries and keys of that width are multiplied by."""
    of_scores = 1.0 if section.rope_attention_scaling else _yarn_scale(section) ** 2
    return of_scores / math.sqrt(width)


def _yarn_scale(section: DecoderConfig) -> float:
    """sqrt(1/t) of arXiv:2309.00071, section 3.4."""
    if section.stretches != "yarn":
        return 1.0
    return 0.1 * section.mscale * math.log(section.rope_factor) + 1.0


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + head_dim/2) of x: [batch, seq, heads, head_dim] by its position's
    angle.

    The sine is signed, so a roll replaces the usual negate-and-swap. In fp32, returned in x's type.
    """
    cos, sin = rotation
    return (x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin).type_as(x)
