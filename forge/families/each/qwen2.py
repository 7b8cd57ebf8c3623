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
    architecture = "Qwen2ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 32}
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        found = sizes(keys) | activation(keys, default="silu") | rope.read(keys)
        keys.only("use_mrope", False, why="forge has rotary positions in one dimension")
        return found | windows(keys, found) | {f"{each}_bias": True for each in "qkv"}

    def content(self, section: Decoder) -> dict[str, Any]:
        found = write_sizes(section) | rope.write(section)
        del found["head_dim"]
        return found | write_windows(section)


def windows(keys: Keys, found: dict[str, Any]) -> dict[str, Any]:
    """Of layers from max_window_layers on, where they are used."""
    used = bool(keys.take("use_sliding_window", default=False))
    return patterns.windows(keys, found["n_layers"], used=used)


def write_windows(section: Decoder) -> dict[str, Any]:
    """What `windows` reads."""
    window = patterns.window_of(section)
    found = {"use_sliding_window": window is not None, "sliding_window": window}
    found["layer_types"] = patterns.types_of(section)
    return found | {"max_window_layers": section.n_layers if window is None else 0}
