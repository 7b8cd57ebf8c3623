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
        found = self.common(keys) | rope.read(keys)
        # Old files say gelu and mean its approximation, as transformers reads them.
        return found | {
            "activation": "gelu_tanh" if found["activation"] == "gelu" else found["activation"]
        }

    def common(self, keys: Keys, name: str = "hidden_act") -> dict[str, Any]:
        """What all of them have."""
        found = sizes(keys, tied=True) | activation(keys, name, "gelu_pytorch_tanh")
        found["head_dim"] = found["head_dim"] or 256
        biases = bool(keys.take("attention_bias", default=False))
        found |= {f"{each}_bias": biases for each in "qkvo"}
        return found | {"norm_unit_offset": True, "embedding_multiplier": scale(found["dim"])}

    def content(self, section: Decoder) -> dict[str, Any]:
        return self.write_common(section) | rope.write(section)

    def write_common(self, section: Decoder) -> dict[str, Any]:
        """What `common` reads."""
        return write_sizes(section) | {"attention_bias": all(section.attention_biases.values())}


def scale(dim: int | None) -> float:
    """The factor of embeddings of a width."""
    return math.sqrt(dim or 1)
