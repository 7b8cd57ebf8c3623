"""Qwen 2 and 2.5: biases of queries, keys and values."""

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


class Qwen2(Family):
    model_type = "qwen2"
    model_types = ("qwen2_vl_text", "qwen2_5_vl_text")
    architecture = "Qwen2ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 32}
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu") | rope.read_rope(keys)
        keys.only("use_mrope", False, why="forge has rotary positions in one dimension")
        return (
            options | sliding_windows(keys, options) | {f"{letter}_bias": True for letter in "qkv"}
        )

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        del config["head_dim"]
        return config | write_windows(section)


def sliding_windows(keys: Keys, found: dict[str, Any]) -> dict[str, Any]:
    """Read the windows of the layers from max_window_layers on, where windows are in use."""
    used = bool(keys.take("use_sliding_window", default=False))
    return patterns.read_windows(keys, found["n_layers"], used=used)


def write_windows(section: Decoder) -> dict[str, Any]:
    """Return the keys read by `sliding_windows`."""
    window = patterns.window_of(section)
    config = {"use_sliding_window": window is not None, "sliding_window": window}
    config["layer_types"] = patterns.attention_types(section)
    return config | {"max_window_layers": section.n_layers if window is None else 0}
