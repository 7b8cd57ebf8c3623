"""Mistral: Llama with one window of all layers."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
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


class Mistral(Family):
    model_type = "mistral"
    architecture = "MistralForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "sliding_window": 4096}
    theta: ClassVar[float] = 10000.0
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = (
            sizes(keys) | activation(keys, default="silu") | rope.read_rope(keys, theta=self.theta)
        )
        return options | {"sliding_window_size": keys.number("sliding_window", default=0)}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        return config | {"sliding_window": patterns.window_of(section)}
