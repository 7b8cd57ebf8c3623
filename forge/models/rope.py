"""Rotary position embedding (RoFormer, arXiv:2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig

Rotation = tuple[Tensor, ...]
"""Tables at some positions, each [seq, 1, width], or at each row's positions, [batch, seq, 1,
width]: cosine and signed sine, as wide as the rotated part of a head; or a temperature, of width 1.
"""


class PositionTable(nn.Module):
    """Tables of all positions, in fp32, in no state_dict.

    names: of the tables.
    """

    names: tuple[str, ...] = ()

    def __init__(self, section: DecoderConfig, width: int) -> None:
        super().__init__()
        self.section = section
        for name in self.names:
            table = torch.empty(section.max_seq_len, 1, width, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)
        self.reset_buffers()

    @property
    def tables(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, name) for name in self.names)

    def reset_buffers(self) -> None:
        """Compute the tables, on the CPU, so that every device has the same bits."""
        if self.tables[0].is_meta:
            return
        length = self.section.max_seq_len
        positions = torch.arange(length, device="cpu", dtype=torch.float32)
        for table, values in zip(self.tables, self.computed(positions), strict=True):
            table.copy_(values.reshape(table.shape))

    def computed(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Compute the tables at some positions."""
        raise NotImplementedError

    def forward(self, start: int, seq: int) -> Rotation:
        return tuple(table[start : start + seq] for table in self.tables)

    def at(self, positions: Tensor) -> Rotation:
        """Look up the tables at positions: [batch, seq]."""
        return tuple(table[positions] for table in self.tables)


class RotaryTable(PositionTable):
    """Cosines and sines."""

    names = ("cos", "sin")
    cos: Tensor
    sin: Tensor

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__(section, section.rotary_dim)

    def computed(self, positions: Tensor) -> tuple[Tensor, ...]:
        angles = torch.outer(positions, frequencies(self.section))
        scale = self.section.rotary_scale
        cos, sin = (scale * table for table in (angles.cos(), angles.sin()))
        join = torch.stack if self.section.rope_interleave else torch.cat
        return join((cos, cos), dim=-1), join((-sin, sin), dim=-1)


class Temperatures(PositionTable):
    """Factors of queries in layers without rotation (arXiv:2501.19399, as in Llama 4)."""

    names = ("temperature",)

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__(section, 1)

    def computed(self, positions: Tensor) -> tuple[Tensor, ...]:
        section = self.section
        steps = ((positions + 1) / section.temperature_tuning_floor).floor()
        return (steps.log1p() * section.temperature_tuning_scale + 1,)


def tables_of(sections: Mapping[str, DecoderConfig]) -> nn.ModuleDict:
    """Make the position tables of the kinds of layers with rotation or temperatures."""
    tables: dict[str, nn.Module] = {}
    for kind, section in sections.items():
        if section.is_rotary:
            tables[kind] = RotaryTable(section)
        elif section.is_tempered:
            tables[kind] = Temperatures(section)
    return nn.ModuleDict(tables)


def frequencies(section: DecoderConfig) -> Tensor:
    """The angle per position of each pair, [rotary_dim / 2], in fp32, as in transformers.

    Linear divides all angles by rope_factor; dynamic makes the base larger (NTK); longrope divides
    each angle by a factor of the pair (arXiv:2402.13753); proportional keeps the last pairs still.
    With llama3.1 and yarn a slow pair has 1 / rope_factor of the angle, a fast pair the full angle;
    in between Llama 3.1 blends by a pair's turns (arXiv:2407.21783), YaRN by the pair's index
    (arXiv:2309.00071).
    """
    dim, kind = section.rotary_dim, section.rope_type
    exponents = torch.arange(0, dim, 2, device="cpu", dtype=torch.float32) / dim
    periods = _base(section) ** exponents
    angles = 1.0 / periods
    if kind in ("default", "dynamic"):
        return angles
    if kind == "linear":
        return angles / section.rope_factor
    if kind == "proportional":
        turning = torch.arange(dim // 2) < int(section.partial_rotary_factor * dim // 2)
        return angles.where(turning, 0.0) / section.rope_factor
    length = section.original_max_position_embeddings
    if kind == "longrope":
        longer = section.max_seq_len > length
        factors = section.rope_long_factor if longer else section.rope_short_factor
        return 1.0 / (torch.tensor(factors, device="cpu", dtype=torch.float32) * periods)
    slow, fast = section.beta_slow, section.beta_fast
    if kind == "llama3.1":
        unscaled = _ramp(length * angles / (2 * math.pi), slow, fast)
    else:
        first, last = (_pair_with(turns, section) for turns in (fast, slow))
        if section.rope_truncate:
            first, last = math.floor(first), math.ceil(last)
        index = torch.arange(dim // 2, device="cpu", dtype=torch.float32)
        unscaled = 1 - _ramp(index, max(first, 0), min(last, dim - 1))
    return 1.0 / (section.rope_factor * periods) * (1 - unscaled) + angles * unscaled


def _base(section: DecoderConfig) -> float:
    """rope_theta, stretched by dynamic where max_seq_len exceeds the original length."""
    if section.rope_type != "dynamic":
        return section.rope_theta
    dim, factor = section.rotary_dim, section.rope_factor
    longer = max(section.max_seq_len / section.original_max_position_embeddings, 1.0)
    return section.rope_theta * (factor * longer - (factor - 1)) ** (dim / (dim - 2))


def _pair_with(turns: float, section: DecoderConfig) -> float:
    """The index, not rounded, of the pair with `turns` turns in the original length."""
    length = section.original_max_position_embeddings
    per_turn = math.log(length / (turns * 2 * math.pi)) / math.log(section.rope_theta)
    return section.rotary_dim * per_turn / 2


def _ramp(x: Tensor, low: float, high: float) -> Tensor:
    """A ramp: 0 up to low, 1 from high on, linear between; a step where low equals high."""
    return ((x - low) / (high - low or 0.001)).clamp(0, 1)


def softmax_scale(section: DecoderConfig, width: int) -> float:
    """The factor of the scores of queries and keys of a given width."""
    scale = 1 / math.sqrt(width) if section.query_scale is None else section.query_scale
    return section.scores_scale * scale


def rotate(x: Tensor, rotation: Rotation, *, adjacent: bool = False) -> Tensor:
    """Rotate the first dimensions of each head of x: [batch, seq, heads, head_dim] by the angles of
    the position, in pairs (i, i + width / 2) of the rotated width, or (2i, 2i + 1).

    The sine is signed, so the two of a pair are swapped and neither is negated. In fp32, returned
    in x's type.
    """
    cos, sin = rotation
    width = cos.shape[-1]
    turned = x[..., :width]
    if adjacent:
        swapped = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    else:
        swapped = turned.roll(width // 2, dims=-1)
    turned = (turned * cos + swapped * sin).type_as(x)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)
