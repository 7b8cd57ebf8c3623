"""gpt-oss: sinks, windows in every second layer, biases, experts with limited activations."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import ATTENTION, NORMS, OUTSIDE, sizes, write_sizes
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING
from forge.families.table import FolderTensor, Table, every

PLACE = "mlp.experts"
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
YARN |= {"truncate": False, "original_max_position_embeddings": 4096}
"""Rotation of a config.json without rotation."""
EXPERTS: Table = {
    "feed_forward.router.weight": "mlp.router.weight",
    "feed_forward.router.bias": "mlp.router.bias",
    "feed_forward.experts.w_down": FolderTensor(name=f"{PLACE}.down_proj", transposed=True),
    "feed_forward.experts.w_down_bias": f"{PLACE}.down_proj_bias",
}
for number, each in enumerate(("w_gate", "w_up")):  # columns of the two alternate
    alternate: dict[str, Any] = {"rows": every(2, number), "dim": 1}
    weight = FolderTensor(name=f"{PLACE}.gate_up_proj", transposed=True, **alternate)
    EXPERTS[f"feed_forward.experts.{each}"] = weight
    bias = FolderTensor(name=f"{PLACE}.gate_up_proj_bias", **alternate)
    EXPERTS[f"feed_forward.experts.{each}_bias"] = bias


class GptOss(Family):
    model_type = "gpt_oss"
    architecture = "GptOssForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "head_dim": 64}
    outside = OUTSIDE
    block = ATTENTION | NORMS | EXPERTS | {"attention.sinks": "self_attn.sinks"}

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1e-5) | rope.read_rope(keys, theta=150000.0, usual=YARN)
        keys.inert("hidden_act", "experts_per_token", "initial_context_length")
        keys.only("swiglu_alpha", 1.702, why="forge's quick_gelu has 1.702")
        limit = keys.number("swiglu_limit", default=7.0)
        if limit == 0:
            keys.faults.append("swiglu_limit=0: in transformers nothing is above it")
        options |= {"activation": "quick_gelu", "gated_mlp": True, "mlp_up_offset": 1.0}
        options["mlp_activations_limit"] = limit
        biases = bool(keys.take("attention_bias", default=True))
        options |= {f"{letter}_bias": biases for letter in "qkvo"} | {"attention_sink": True}
        moe = {"num_experts": keys.number("num_local_experts", default=128)}
        moe["top_k"] = keys.number("num_experts_per_tok", default=4)
        options["moe"] = moe | {"router_bias": True, "expert_bias": True, "norm_topk_prob": True}
        count = options["n_layers"] or 0
        usual = [FULL if layer % 2 else SLIDING for layer in range(count)]
        types = patterns.read_types(keys, options["n_layers"], usual)
        by_kind = {SLIDING: {"sliding_window_size": keys.number("sliding_window", default=128)}}
        return options | patterns.layer_options(types, by_kind)

    def content(self, section: Decoder) -> dict[str, Any]:
        if section.activation != "quick_gelu":
            raise ValueError(f"model.activation={section.activation}")
        silu = section.clone()
        silu.thaw()
        silu.activation = "silu"
        config = write_sizes(silu) | rope.write_rope(section)
        config["intermediate_size"] = section.expert_hidden_dim
        config["swiglu_limit"] = section.mlp_activations_limit
        config["attention_bias"] = all(section.attention_biases.values())
        config["num_local_experts"] = section.moe.num_experts
        config["num_experts_per_tok"] = section.moe.top_k
        config["sliding_window"] = patterns.window_of(section) or 128
        return config | {"layer_types": patterns.attention_types(section)}
