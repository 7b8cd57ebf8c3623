"""Granite 3 and 4: Llama with factors of embeddings, scores, outputs of layers and logits."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.common import ATTENTION, NORMS
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.table import FolderTensor, Table, part

PLACE = "block_sparse_moe"
EXPERTS: Table = {
    "feed_forward.router.weight": f"{PLACE}.router.layer.weight",
    "feed_forward.experts.w_down": f"{PLACE}.output_linear.weight",
}
for number, name in enumerate(("w_gate", "w_up")):
    stored = FolderTensor(name=f"{PLACE}.input_linear.weight", rows=part(number, 1), dim=1)
    EXPERTS[f"feed_forward.experts.{name}"] = stored


class Granite(Llama):
    model_type = "granite"
    architecture = "GraniteForCausalLM"

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        for name in ("embedding_multiplier", "residual_multiplier"):
            options[name] = keys.number(name, default=1.0)
        options["query_scale"] = keys.number("attention_multiplier", default=1.0)
        return options | {"logits_multiplier": 1 / keys.number("logits_scaling", default=1.0)}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section)
        config["embedding_multiplier"] = section.embedding_multiplier
        config["residual_multiplier"] = section.residual_multiplier
        scale = section.query_scale or section.computed_head_dim**-0.5
        config["attention_multiplier"] = scale
        return config | {"logits_scaling": 1 / section.logits_multiplier}


class GraniteMoe(Granite):
    model_type = "granitemoe"
    architecture = "GraniteMoeForCausalLM"
    block = ATTENTION | NORMS | EXPERTS

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.only("mlp_bias", False, why="forge's experts have no such biases")
        moe = {"num_experts": keys.number("num_local_experts", default=8)}
        moe["top_k"] = keys.number("num_experts_per_tok", default=2)
        moe |= {"norm_topk_prob": True, "router": "softmax_topk"}
        return super().options(keys) | {"moe": moe}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section) | {"intermediate_size": section.expert_hidden_dim}
        del config["mlp_bias"]
        config["num_local_experts"] = section.moe.num_experts
        return config | {"num_experts_per_tok": section.moe.top_k}
