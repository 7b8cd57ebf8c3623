"""Llama 2 to 3.3, and models of the same shape: SmolLM 2 among others."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    activation,
    sizes,
    write_sizes,
)
from forge.families.family import Family
from forge.families.keys import Keys


class Llama(Family):
    model_type = "llama"
    architecture = "LlamaForCausalLM"
    theta: ClassVar[float] = 10000.0
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        biases = bool(keys.take("attention_bias", default=False))
        keys.inert("is_llama_config")
        keys.only("rope_interleaved", False, why="forge rotates halves of a head")
        options = sizes(keys) | activation(keys, default="silu")
        options |= rope.read_rope(keys, theta=self.theta)
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        return options | {"mlp_bias": bool(keys.take("mlp_bias", default=False))}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        config["attention_bias"] = all(section.attention_biases.values())
        return config | {"mlp_bias": section.has_mlp_bias}
