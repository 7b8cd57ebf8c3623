"""GLM-4 of April 2025: norms on both sides, adjacent pairs of half a head rotated."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    FUSED_MLP,
    OUTSIDE,
    activation,
    adjacent_pairs,
    sizes,
    write_sizes,
)
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.table import Table

NORMS: Table = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention_post_norm.weight": "post_self_attn_layernorm.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
    "feed_forward_post_norm.weight": "post_mlp_layernorm.weight",
}


class Glm4(Family):
    model_type = "glm4"
    architecture = "Glm4ForCausalLM"
    either = ("rope_interleave",)
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "head_dim": 128}
    absent |= {"partial_rotary_factor": 0.5, "attention_bias": True}
    outside = OUTSIDE
    block = ATTENTION | FUSED_MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1.5625e-7) | activation(keys, default="silu")
        options |= rope.read_rope(keys) | {"norm_placement": "both"}
        biases = bool(keys.take("attention_bias", default=True))
        return options | {f"{letter}_bias": biases for letter in "qkv"}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        config["partial_rotary_factor"] = section.partial_rotary_factor
        config["pad_token_id"] = None  # of the class it is beyond a smaller vocabulary
        return config | {"attention_bias": section.attention_biases["q"]}

    def table(self, layer: Decoder) -> Table:
        return self.block | adjacent_pairs(layer)
