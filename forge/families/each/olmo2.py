"""OLMo 2: norms of what layers give, and of all queries and keys at once."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    MLP,
    OUTSIDE,
    QK_NORM,
    activation,
    sizes,
    write_sizes,
)
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.table import Table

NORMS: Table = {
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "feed_forward_post_norm.weight": "post_feedforward_layernorm.weight",
}


class Olmo2(Family):
    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        return self.common(keys) | rope.read_rope(keys)

    def common(self, keys: Keys) -> dict[str, Any]:
        """Return the options of OLMo 2 and 3."""
        options = sizes(keys, eps=1e-5) | activation(keys, default="silu")
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        return options | {"norm_placement": "post", "qk_norm": True, "qk_norm_width": "all"}

    def content(self, section: Decoder) -> dict[str, Any]:
        return self.write_common(section) | rope.write_rope(section)

    def write_common(self, section: Decoder) -> dict[str, Any]:
        """Return the keys read by `common`."""
        config = write_sizes(section)
        del config["head_dim"]
        return config | {"attention_bias": all(section.attention_biases.values())}
