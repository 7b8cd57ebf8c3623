"""Qwen 3: norms of queries and keys, a head at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    QK_NORM,
    activation,
    sizes,
    write_sizes,
)
from forge.families.each.qwen2 import sliding_windows, write_windows
from forge.families.family import Family
from forge.families.keys import Keys


class Qwen3(Family):
    model_type = "qwen3"
    model_types = ("qwen3_vl_text",)
    architecture = "Qwen3ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 32}
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu") | rope.read_rope(keys)
        options["head_dim"] = options["head_dim"] or 128
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        return options | sliding_windows(keys, options) | {"qk_norm": True}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        config["attention_bias"] = all(section.attention_biases.values())
        return config | write_windows(section)
