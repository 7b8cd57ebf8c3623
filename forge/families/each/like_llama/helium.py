"""Helium: Llama that rotates adjacent pairs, with an output of attention without bias."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import adjacent_pairs
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.table import Table


class Helium(Llama):
    model_type = "helium"
    architecture = "HeliumForCausalLM"
    either = ("rope_interleave",)
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 20, "head_dim": 128}
    absent |= {"rms_norm_eps": 1e-8}
    theta = 100_000.0

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys) | {"o_bias": False}
        if options["head_dim"] and options["head_dim"] * options["n_heads"] != options["dim"]:
            keys.faults.append("head_dim: transformers has heads of hidden_size / heads here")
        return options

    def content(self, section: Decoder) -> dict[str, Any]:
        return super().content(section) | {"attention_bias": section.attention_biases["q"]}

    def table(self, layer: Decoder) -> Table:
        return self.block | adjacent_pairs(layer)
