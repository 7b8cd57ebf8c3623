"""OLMoE: norms of all queries and keys at once, and experts in every layer."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import ATTENTION, NORMS, PROJECTIONS, QK_NORM, experts
from forge.families.each.llama import Llama
from forge.families.keys import Keys


class Olmoe(Llama):
    model_type = "olmoe"
    architecture = "OlmoeForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"rms_norm_eps": 1e-5}
    block = ATTENTION | QK_NORM | NORMS | experts("mlp.experts", PROJECTIONS, "mlp.gate.weight")

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.only("clip_qkv", None, why="forge does not clip queries, keys and values")
        keys.only("mlp_bias", False, why="forge's experts have no such biases")
        options = super().options(keys) | {"qk_norm": True, "qk_norm_width": "all"}
        moe = {"num_experts": keys.number("num_experts", "num_local_experts", default=64)}
        moe["top_k"] = keys.number("num_experts_per_tok", default=8)
        moe["norm_topk_prob"] = keys.flag("norm_topk_prob", False)
        return options | {"moe": moe | {"router": "softmax_topk"}}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section) | {"intermediate_size": section.expert_hidden_dim}
        del config["mlp_bias"], config["head_dim"]
        config["num_experts"] = section.moe.num_experts
        config["num_experts_per_tok"] = section.moe.top_k
        return config | {"norm_topk_prob": section.moe.norm_topk_prob}
