"""Seed-OSS: Llama with biases of queries, keys and values, and of the output apart."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.each.llama import Llama
from forge.families.keys import Keys


class SeedOss(Llama):
    model_type = "seed_oss"
    architecture = "SeedOssForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "head_dim": 128}
    absent |= {"attention_bias": True}

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        return options | {"o_bias": bool(keys.take("attention_out_bias", default=False))}

    def content(self, section: Decoder) -> dict[str, Any]:
        biases = section.attention_biases
        config = super().content(section) | {"attention_bias": biases["q"]}
        return config | {"attention_out_bias": biases["o"]}
