"""DeepSeek 2: latent attention, and experts by a softmax, in groups or not."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.each.deepseek_v3 import COMMON, DeepSeekV3, sizes_of_experts, write_experts
from forge.families.keys import Keys

GREEDY, BY_GROUPS = "greedy", "group_limited_greedy"


class DeepSeekV2(DeepSeekV3):
    model_type = "deepseek_v2"
    model_types = ()
    architecture = "DeepseekV2ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"q_lora_rank": 1536, "n_shared_experts": 2}
    block = COMMON

    def routing(self, keys: Keys) -> dict[str, Any]:
        keys.only("scoring_func", "softmax", why="the family has no other")
        keys.only("norm_topk_prob", False, why="no model of the family is so")
        method = keys.choice("topk_method", {GREEDY: GREEDY, BY_GROUPS: BY_GROUPS}, GREEDY)
        groups, chosen = (keys.number(n, default=1) for n in ("n_group", "topk_group"))
        moe = sizes_of_experts(keys) | {"router": "softmax_topk", "norm_topk_prob": False}
        if method == BY_GROUPS:
            moe |= {"n_routing_groups": groups, "topk_routing_group": chosen}
        return moe

    def write_routing(self, section: Decoder) -> dict[str, Any]:
        moe, config = section.moe, write_experts(section)
        if moe.n_routing_groups == 1:
            return config | {"topk_method": GREEDY}
        config |= {"n_group": moe.n_routing_groups, "topk_group": moe.topk_routing_group}
        return config | {"topk_method": BY_GROUPS}
