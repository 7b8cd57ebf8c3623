"""ERNIE 4.5, dense: Llama that rotates adjacent pairs."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import adjacent_pairs
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.table import Table


class Ernie45(Llama):
    model_type = "ernie4_5"
    architecture = "Ernie4_5ForCausalLM"
    either = ("rope_interleave",)
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "head_dim": 128}
    absent |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    theta = 500_000.0

    def options(self, keys: Keys) -> dict[str, Any]:
        for name in ("attention_bias", "mlp_bias"):
            keys.only(name, False, why="transformers reads use_bias here")
        options, biases = super().options(keys), bool(keys.take("use_bias", default=False))
        return options | {f"{letter}_bias": biases for letter in "qkvo"} | {"mlp_bias": biases}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section)
        del config["attention_bias"], config["mlp_bias"]
        return config | {"use_bias": section.has_mlp_bias}

    def table(self, layer: Decoder) -> Table:
        return self.block | adjacent_pairs(layer)
