"""Positions of tokens, and how rotary ones are stretched."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Condition, Section, opt

ROPE_TYPES = ("default", "llama3.1", "yarn")
STRETCHED = Condition(
    lambda config, ranks: config.model.stretches in ("llama3.1", "yarn"),
    "without rotary positions of another model.rope_type",
)
YARN = Condition(
    lambda config, ranks: config.model.stretches == "yarn",
    "without rotary positions of model.rope_type=yarn",
)


@dataclass(kw_only=True)
class RotaryOptions(Section):
    """Options of the model that say where a token stands."""

    position: str = opt("rope", "position encoding", choices=("rope", "learned", "none"))
    rope_theta: float = opt(10000.0, "base of the rotary frequencies", gt=0)
    rope_type: str = opt("default", "how rotary positions are stretched", choices=ROPE_TYPES)
    rope_factor: float = opt(
        40, "by how much rotary positions are stretched", ge=1, acts_when=STRETCHED
    )
    original_max_position_embeddings: int = opt(
        4096, "longest sequence in tokens before the stretching", gt=0, acts_when=STRETCHED
    )
    beta_fast: float = opt(
        32, "pairs that turn more often in that length are not stretched", gt=0, acts_when=STRETCHED
    )
    beta_slow: float = opt(
        1, "pairs that turn less often in it are stretched in full", gt=0, acts_when=STRETCHED
    )
    rope_truncate: bool = opt(
        True, "with yarn: the range of pairs between the two is rounded", acts_when=YARN
    )
    mscale: float = opt(
        1.0,
        "with yarn: scores are multiplied by (0.1 * mscale * ln(rope_factor) + 1)^2",
        ge=0,
        acts_when=YARN,
    )
    rope_attention_scaling: bool = opt(
        False,
        "with yarn: multiply cosines and sines, by the root of it, in place of scores",
        acts_when=YARN,
    )

    @property
    def stretches(self) -> str:
        """rope_type, where positions are rotary."""
        return self.rope_type if self.position == "rope" else "default"
