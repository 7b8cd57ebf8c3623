"""DeepSeek 3 and 3.1, R1, and Kimi K2: latent attention, experts chosen by groups and a bias."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mla import MLA
from forge.families import rope
from forge.families.common import (
    MLP,
    NORMS,
    OUTSIDE,
    PROJECTIONS,
    activation,
    experts,
    sizes,
    write_sizes,
)
from forge.families.family import SELECTION_BIAS, Family
from forge.families.keys import Keys
from forge.families.table import FolderTensor, Table, halves_of_pairs

LATENT: Table = {
    "attention.wq_a.weight": "self_attn.q_a_proj.weight",
    "attention.q_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.wkv_b.weight": "self_attn.kv_b_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
}
ROTATED = {"wq": "q_proj", "wq_b": "q_b_proj", "wkv_a": "kv_a_proj_with_mqa"}
WIDTHS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
SHARED: Table = {
    f"feed_forward.shared.{name}.weight": f"mlp.shared_experts.{hf_name}.weight"
    for name, hf_name in PROJECTIONS.items()
}
EXPERTS = experts("mlp.experts", PROJECTIONS, "mlp.gate.weight")
LATENT_EPS = 1e-6
"""Epsilon of the norms of latents, fixed in the transformers class beside rms_norm_eps."""
FURTHER: Table = {
    "embedding_norm.weight": "enorm.weight",
    "hidden_norm.weight": "hnorm.weight",
    "projection.weight": "eh_proj.weight",
    "norm.weight": "shared_head.norm.weight",
}
"""A module for a further token, stored as a layer after the last."""
COPIES = (".embed_tokens.weight", ".shared_head.head.weight")
"""Tensors of such a layer that repeat the model's own."""
COMMON = LATENT | MLP | NORMS | SHARED | EXPERTS


def rotated(layer: Decoder) -> Table:
    """Return the table of the rotated projections of queries and keys.

    The files rotate adjacent pairs, forge pairs half a head apart; with rope_interleave forge
    follows the files.
    """
    table: Table = {}
    for module, hf_module in ROTATED.items():
        heads = 1 if module == "wkv_a" else layer.n_heads
        rows = halves_of_pairs(heads, layer.rotary_dim)
        name = f"self_attn.{hf_module}.weight"
        stored = FolderTensor(name=name, rows=None if layer.rope_interleave else rows)
        table[f"attention.{module}.weight"] = stored
    return table


class DeepSeekV3(Family):
    model_type = "deepseek_v3"
    model_types = ("kimi_k2",)
    architecture = "DeepseekV3ForCausalLM"
    either = ("rope_interleave",)
    absent: ClassVar[dict[str, Any]] = {"q_lora_rank": 1536, "n_shared_experts": 1}
    absent |= {"routed_scaling_factor": 2.5, "first_k_dense_replace": 3}
    absent |= {"n_group": 8, "topk_group": 4}
    outside = OUTSIDE
    further = FURTHER
    block = COMMON | {SELECTION_BIAS: "mlp.gate.e_score_correction_bias"}

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu")
        options |= rope.read_rope(keys, scores=True)
        del options["head_dim"], options["n_kv_heads"]
        keys.inert("head_dim", "qk_head_dim", "num_key_value_heads")
        options["mtp_num_layers"] = further_layers(keys)
        keys.only("attention_bias", False, why="forge's latent attention has no biases")
        keys.only("mlp_bias", False, why="forge's experts have no such biases")
        keys.only("rope_interleave", True, why="no model of the family is without")
        keys.only("moe_layer_freq", 1, why="all layers after the first have experts")
        mixer = {"schema": "mla", "q_lora_rank": keys.number("q_lora_rank", default=0)}
        mixer["latent_norm_eps"] = None if options["norm_eps"] == LATENT_EPS else LATENT_EPS
        mixer |= {name: keys.number(name) for name in WIDTHS}
        return options | {"mixer": mixer, "moe": self.routing(keys)}

    def routing(self, keys: Keys) -> dict[str, Any]:
        """Read the routing options of experts."""
        keys.only("topk_method", "noaux_tc", why="the family has no other")
        keys.only("scoring_func", "sigmoid", why="the family has no other")
        moe = sizes_of_experts(keys) | {"router": "sigmoid_topk"}
        moe["norm_topk_prob"] = keys.flag("norm_topk_prob", True)
        groups = keys.number("n_group", default=1)
        chosen = keys.number("topk_group", default=groups)
        return moe | {"n_routing_groups": groups, "topk_routing_group": chosen}

    def content(self, section: Decoder) -> dict[str, Any]:
        if not isinstance(section.mixer, MLA):
            raise ValueError(f"model.mixer={section.mixer.schema_name}")
        config = write_sizes(section) | rope.write_rope(section)
        config |= {name: getattr(section.mixer, name) for name in WIDTHS}
        config["q_lora_rank"] = section.mixer.q_lora_rank or None
        config["num_key_value_heads"] = section.n_heads
        config["head_dim"] = section.mixer.qk_rope_head_dim
        return config | self.write_routing(section)

    def write_routing(self, section: Decoder) -> dict[str, Any]:
        """Return the keys read by `routing`."""
        moe, config = section.moe, write_experts(section)
        config |= {"n_group": moe.n_routing_groups, "norm_topk_prob": moe.norm_topk_prob}
        config["topk_group"] = moe.topk_routing_group if moe.n_routing_groups > 1 else 1
        config["num_nextn_predict_layers"] = section.mtp_num_layers
        return config | {"rope_interleave": True}

    def table(self, layer: Decoder) -> Table:
        return self.block | rotated(layer)

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also copies in the layers that predict further tokens, and left-out layers."""
        return beyond_last(name, section) or super().ignored(name, section)


def further_layers(keys: Keys) -> int:
    """Read the number of modules for further tokens."""
    return keys.number("num_nextn_predict_layers", "num_mtp_layers", default=0)


def beyond_last(name: str, section: Decoder) -> bool:
    """Whether a tensor is of a layer behind the last that the model has none for, or a copy in the
    layer of a module for a further token.
    """
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    if layer is None or int(layer[1]) < section.n_layers:
        return False
    return name.endswith(COPIES) or int(layer[1]) >= section.n_layers + section.mtp_num_layers


def sizes_of_experts(keys: Keys) -> dict[str, Any]:
    """Read the number, the width and the layers of experts."""
    return {
        "num_experts": keys.number("n_routed_experts", "num_local_experts", "num_experts"),
        "top_k": keys.number("num_experts_per_tok"),
        "ffn_hidden_dim": keys.number("moe_intermediate_size"),
        "shared_experts": keys.number("n_shared_experts", default=0),
        "routed_scaling_factor": keys.number("routed_scaling_factor", default=1.0),
        "first_num_dense_layers": keys.number("first_k_dense_replace", default=0),
    }


def write_experts(section: Decoder) -> dict[str, Any]:
    """Return the keys read by `sizes_of_experts`."""
    moe = section.moe
    return {
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": section.expert_hidden_dim,
        "n_shared_experts": moe.shared_width(section) // section.expert_hidden_dim,
        "routed_scaling_factor": moe.routed_scaling_factor,
        "first_k_dense_replace": moe.first_num_dense_layers,
    }
