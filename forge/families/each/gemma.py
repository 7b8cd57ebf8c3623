"""Gemma: norms that scale by 1 + weight, embeddings times the root of their width, GeGLU."""

from __future__ import annotations

import math
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


class Gemma(Family):
    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 16}
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.inert("hidden_activation")  # transformers reads hidden_act alone
        options = self.common(keys) | rope.read_rope(keys)
        # Old files name gelu and mean its approximation; transformers reads them likewise.
        return options | {
            "activation": "gelu_tanh" if options["activation"] == "gelu" else options["activation"]
        }

    def common(self, keys: Keys, name: str = "hidden_act") -> dict[str, Any]:
        """Return the options of all Gemma models."""
        options = sizes(keys, tied=True) | activation(keys, name, "gelu_pytorch_tanh")
        options["head_dim"] = options["head_dim"] or 256
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        return options | {
            "norm_unit_offset": True,
            "embedding_multiplier": _embedding_scale(options["dim"]),
        }

    def content(self, section: Decoder) -> dict[str, Any]:
        return self.write_common(section) | rope.write_rope(section)

    def write_common(self, section: Decoder) -> dict[str, Any]:
        """Return the keys read by `common`."""
        return write_sizes(section) | {"attention_bias": all(section.attention_biases.values())}


def _embedding_scale(dim: int | None) -> float:
    """Return the factor of embeddings of a width."""
    return math.sqrt(dim or 1)
