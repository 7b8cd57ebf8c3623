"""GLM-4.7-Flash: DeepSeek 3 in other widths."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.each.deepseek_v3 import DeepSeekV3
from forge.families.keys import Keys

DENSE, SPARSE = "dense", "sparse"


class Glm4MoeLite(DeepSeekV3):
    model_type = "glm4_moe_lite"
    model_types = ()
    architecture = "Glm4MoeLiteForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"q_lora_rank": 768, "n_shared_experts": 1}
    absent |= {"routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "n_routed_experts": 64}
    absent |= {"num_experts_per_tok": 4, "moe_intermediate_size": 1536, "kv_lora_rank": 512}
    absent |= {"qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256}
    absent |= {"n_group": 1, "topk_group": 1}

    def routing(self, keys: Keys) -> dict[str, Any]:
        count = keys.number("num_hidden_layers") or 0
        first = dense_first(keys, count)
        moe = super().routing(keys)
        if keys.has("first_k_dense_replace") and moe["first_num_dense_layers"] != first:
            keys.faults.append("first_k_dense_replace: transformers reads mlp_layer_types alone")
        return moe | {"first_num_dense_layers": first}

    def write_routing(self, section: Decoder) -> dict[str, Any]:
        config, first = super().write_routing(section), section.moe.first_num_dense_layers
        del config["first_k_dense_replace"]
        types = [DENSE] * first + [SPARSE] * (section.n_layers - first)
        return config | {"mlp_layer_types": types}


def dense_first(keys: Keys, count: int) -> int:
    """Read the number of first layers, of `count`, without experts."""
    types = keys.take("mlp_layer_types", default=[DENSE] + [SPARSE] * (count - 1))
    first = types.index(SPARSE) if SPARSE in types else len(types)
    if list(types) != [DENSE] * first + [SPARSE] * (count - first):
        keys.faults.append("mlp_layer_types: layers without experts are the first ones")
    return first
