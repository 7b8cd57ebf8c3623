"""Qwen 3 with experts in every layer, or in every n-th."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import ATTENTION, MLP, NORMS, PROJECTIONS, QK_NORM, experts
from forge.families.each.qwen3 import Qwen3
from forge.families.keys import Keys


class Qwen3Moe(Qwen3):
    model_type = "qwen3_moe"
    model_types = ()
    architecture = "Qwen3MoeForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4}
    block = (
        ATTENTION | QK_NORM | MLP | NORMS | experts("mlp.experts", PROJECTIONS, "mlp.gate.weight")
    )

    def options(self, keys: Keys) -> dict[str, Any]:
        return super().options(keys) | {"moe": routing(keys)}

    def content(self, section: Decoder) -> dict[str, Any]:
        return super().content(section) | write_routing(section)


def routing(keys: Keys) -> dict[str, Any]:
    """Read the layers with experts and the routing of tokens."""
    moe = {"num_experts": keys.number("num_experts", "num_local_experts", default=128)}
    moe["top_k"] = keys.number("num_experts_per_tok", default=8)
    moe["ffn_hidden_dim"] = keys.number("moe_intermediate_size", default=768)
    moe["norm_topk_prob"] = keys.flag("norm_topk_prob", False)
    moe["frequency"] = keys.number("decoder_sparse_step", default=1)
    dense = list(keys.take("mlp_only_layers", default=[]))
    if dense != list(range(len(dense))):
        keys.faults.append(f"mlp_only_layers={dense}: layers without experts are the first ones")
    return moe | {"first_num_dense_layers": len(dense), "router": "softmax_topk"}


def write_routing(section: Decoder) -> dict[str, Any]:
    """Return the keys read by `routing`."""
    moe = section.moe
    return {
        "num_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": section.expert_hidden_dim,
        "norm_topk_prob": moe.norm_topk_prob,
        "decoder_sparse_step": moe.frequency,
        "mlp_only_layers": list(range(moe.first_num_dense_layers)),
    }
