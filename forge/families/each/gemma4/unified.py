"""Gemma 4 12B, its text: Gemma 4 without experts and without inputs of single layers."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import OUTSIDE
from forge.families.each.gemma2 import NORMS
from forge.families.each.gemma3 import Gemma3
from forge.families.each.gemma4.text import Gemma4
from forge.families.keys import Keys

ELSEWHERE = "the class has no such layers: they are those of gemma4_text"
LEFT_OUT = ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block")


class Gemma4Unified(Gemma4):
    model_type = "gemma4_unified_text"
    architecture = "Gemma4UnifiedForCausalLM"
    outside = OUTSIDE
    block = Gemma3.block | NORMS | {"layer_scalar.factor": "layer_scalar"}
    window = 1024
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4, "head_dim": 256}

    def inputs(self, keys: Keys, vocab: int | None) -> int:
        keys.only("hidden_size_per_layer_input", 0, None, why=ELSEWHERE)
        keys.inert("vocab_size_per_layer_input")
        return 0

    def branches(self, keys: Keys) -> dict[str, Any]:
        keys.only("enable_moe_block", False, None, why=ELSEWHERE)
        keys.inert("num_experts", "top_k_experts", "moe_intermediate_size")
        return {}

    def content(self, section: Decoder) -> dict[str, Any]:
        if section.per_layer_input_width:
            raise ValueError(f"model.per_layer_input_width={section.per_layer_input_width}")
        if section.is_moe:
            raise ValueError(f"model.moe.num_experts={section.moe.num_experts}")
        config = super().content(section)
        return {key: value for key, value in config.items() if key not in LEFT_OUT}
