"""MiniMax M2: norms of all queries and keys at once, half a head rotated, experts everywhere."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    QK_NORM,
    activation,
    experts,
    sizes,
    write_sizes,
)
from forge.families.each.mixtral import NAMES, PLACE
from forge.families.family import SELECTION_BIAS, Family
from forge.families.keys import Keys

BIAS = {SELECTION_BIAS: f"{PLACE}.e_score_correction_bias"}
FIXED = {"use_qk_norm": True, "qk_norm_type": "per_layer", "scoring_func": "sigmoid"}
FIXED |= {"use_routing_bias": True, "shared_intermediate_size": 0}
"""Keys of published files that the class does not read, with the values that it stands for."""


class MiniMaxM2(Family):
    model_type = "minimax_m2"
    architecture = "MiniMaxM2ForCausalLM"
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "head_dim": 128}
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | NORMS | BIAS
    block |= experts(f"{PLACE}.experts", NAMES, f"{PLACE}.gate.weight")

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu")
        options |= rope.read_rope(keys, theta=5_000_000.0)
        rotated = keys.number("rotary_dim", default=None)
        if rotated and not keys.has("partial_rotary_factor") and not keys.has("rope_parameters"):
            width = options["head_dim"] or options["dim"] // options["n_heads"]
            options["partial_rotary_factor"] = rotated / width
        for name, value in FIXED.items():
            keys.only(name, value, why="transformers has no other")
        keys.inert("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "rotary_dim")
        options |= {"qk_norm": True, "qk_norm_width": "all"}
        moe = {"num_experts": keys.number("num_local_experts", "num_experts", default=256)}
        moe |= {"top_k": keys.number("num_experts_per_tok", default=8), "router": "sigmoid_topk"}
        return options | {"moe": moe | {"norm_topk_prob": True}}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        config["intermediate_size"] = section.expert_hidden_dim
        config["num_local_experts"] = section.moe.num_experts
        return config | {"num_experts_per_tok": section.moe.top_k}
