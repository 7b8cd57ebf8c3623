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
        return self.common(keys) | rope.read(keys)

    def common(self, keys: Keys) -> dict[str, Any]:
        """What OLMo 2 and 3 have."""
        found = sizes(keys, eps=1e-5) | activation(keys, default="silu")
        biases = bool(keys.take("attention_bias", default=False))
        found |= {f"{each}_bias": biases for each in "qkvo"}
        return found | {"norm_placement": "post", "qk_norm": True, "qk_norm_width": "all"}

    def content(self, section: Decoder) -> dict[str, Any]:
        return self.write_common(section) | rope.write(section)

    def write_common(self, section: Decoder) -> dict[str, Any]:
        """What `common` reads."""
        found = write_sizes(section)
        del found["head_dim"]
        return found | {"attention_bias": all(section.attention_biases.values())}
