"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import ATTENTION, NORMS, experts
from forge.families.each.mistral import Mistral
from forge.families.keys import Keys

NAMES = {"w_gate": "w1", "w_down": "w2", "w_up": "w3"}
PLACE = "block_sparse_moe"


class Mixtral(Mistral):
    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    theta = 1_000_000.0
    block = ATTENTION | NORMS | experts(f"{PLACE}.experts", NAMES, f"{PLACE}.gate.weight")

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        moe = {"num_experts": keys.number("num_local_experts", default=8)}
        moe["top_k"] = keys.number("num_experts_per_tok", default=2)
        return options | {"moe": moe | {"norm_topk_prob": True, "router": "softmax_topk"}}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section) | {"intermediate_size": section.expert_hidden_dim}
        config["num_local_experts"] = section.moe.num_experts
        return config | {"num_experts_per_tok": section.moe.top_k}
