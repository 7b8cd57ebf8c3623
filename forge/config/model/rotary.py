"""Positions of tokens, and the stretching of rotary positions."""

from __future__ import annotations

import math

from forge.config.field import Condition, Section, opt, section

ROPE_TYPES = ("default", "linear", "dynamic", "llama3.1", "yarn", "longrope", "proportional")
OF_LENGTH = ("dynamic", "llama3.1", "yarn", "longrope")
"""Types with a length before the stretching."""


def _only(*types: str) -> Condition:
    """Return a condition: rotary positions are of one of these types."""
    type_names = " or ".join(types)
    return Condition(
        lambda config, ranks: config.model.stretches in types,
        f"without rotary positions of model.rope_type={type_names}",
    )


STRETCHED = Condition(
    lambda config, ranks: config.model.stretches != "default",
    "without rotary positions of another model.rope_type",
)
ROTATED = Condition(
    lambda config, ranks: any(layer.is_rotary for _, layer in config.model.in_use()),
    "without rotary positions",
)
YARN, LONG = _only("yarn"), _only("longrope")


@section
class RotaryOptions(Section):
    """Options of the model that say where a token stands."""

    position: str = opt(
        "rope", "position encoding", choices=("rope", "learned", "sinusoidal", "none")
    )
    rope_theta: float = opt(10000.0, "base of the rotary frequencies", gt=1)
    rope_interleave: bool = opt(
        False,
        "rotate adjacent pairs of dimensions, as in Llama 4, instead of pairs half a head apart",
        acts_when=ROTATED,
    )
    partial_rotary_factor: float = opt(
        1.0,
        "share of a head that is rotated, from its first dimension on; with "
        "rope_type=proportional the frequencies are those of the whole head",
        gt=0,
        le=1,
        acts_when=ROTATED,
    )
    rope_type: str = opt(
        "default",
        "how rotary positions are stretched; dynamic and longrope for sequences of max_seq_len",
        choices=ROPE_TYPES,
    )
    rope_factor: float = opt(
        40, "factor by which rotary positions are stretched", ge=1, acts_when=STRETCHED
    )
    original_max_position_embeddings: int = opt(
        4096,
        "longest sequence in tokens before the stretching",
        gt=1,
        acts_when=_only(*OF_LENGTH),
    )
    beta_fast: float = opt(
        32,
        "pairs with more turns in the original length are not stretched",
        gt=0,
        acts_when=_only("llama3.1", "yarn"),
    )
    beta_slow: float = opt(
        1,
        "pairs with fewer turns in the original length are stretched in full",
        gt=0,
        acts_when=_only("llama3.1", "yarn"),
    )
    rope_truncate: bool = opt(
        True, "with yarn: round the range of pairs between beta_fast and beta_slow", acts_when=YARN
    )
    mscale: float = opt(
        1.0,
        "with yarn: scores are multiplied by (0.1 * mscale * ln(rope_factor) + 1)^2",
        ge=0,
        acts_when=YARN,
    )
    mscale_all_dim: float | None = opt(
        None,
        "with yarn: in place of mscale for scores; what is rotated is then multiplied by the ratio "
        "of the two roots; null = mscale",
        ge=0,
        acts_when=YARN,
    )
    rope_attention_scaling: bool = opt(
        False,
        "with yarn: multiply cosines and sines, by the root of it, in place of scores",
        acts_when=YARN,
    )
    rope_attention_factor: float | None = opt(
        None,
        "factor of cosines and sines; null = that of rope_type",
        gt=0,
        acts_when=_only("yarn", "longrope"),
    )
    rope_short_factor: list[float] = opt(
        [], "with longrope: what divides the angle of each pair up to that length", acts_when=LONG
    )
    rope_long_factor: list[float] = opt(
        [], "with longrope: the same where max_seq_len is longer", acts_when=LONG
    )

    @property
    def stretches(self) -> str:
        """rope_type of rotary positions; default for other positions."""
        return self.rope_type if self.is_rotary else "default"

    @property
    def is_rotary(self) -> bool:
        """Whether heads are rotated."""
        return self.position == "rope"

    def rotated(self, width: int) -> int:
        """Return the rotated dimensions of a head of this width."""
        all_pairs = self.rope_type == "proportional"
        return width if all_pairs else int(width * self.partial_rotary_factor)

    def yarn_root(self, mscale: float) -> float:
        """Return sqrt(1/t) of arXiv:2309.00071, section 3.4, for a factor above 1."""
        return 0.1 * mscale * math.log(self.rope_factor) + 1.0

    @property
    def rotary_scale(self) -> float:
        """Factor of cosines and sines."""
        factor = self.rope_attention_factor
        if self.stretches == "yarn":
            if factor is not None:
                return factor
            of_scores = self.mscale_all_dim
            if of_scores is None:
                return self.yarn_root(self.mscale) if self.rope_attention_scaling else 1.0
            return self.yarn_root(self.mscale) / self.yarn_root(of_scores)
        if self.stretches == "longrope":
            if factor is not None:
                return factor
            length = math.log(self.original_max_position_embeddings)
            return math.sqrt(1 + math.log(self.rope_factor) / length)
        return 1.0

    @property
    def scores_scale(self) -> float:
        """Factor of scores by the stretching."""
        if self.stretches != "yarn" or self.rope_attention_scaling:
            return 1.0
        all_dim = self.mscale if self.mscale_all_dim is None else self.mscale_all_dim
        return self.yarn_root(all_dim) ** 2
