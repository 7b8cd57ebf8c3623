"""dots.llm1: Qwen 3 with the experts of DeepSeek 3."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    QK_NORM,
    activation,
    sizes,
    write_sizes,
)
from forge.families.each.deepseek_v3 import EXPERTS, SHARED, sizes_of_experts, write_experts
from forge.families.family import SELECTION_BIAS, Family
from forge.families.keys import Keys

BIAS = {SELECTION_BIAS: "mlp.gate.e_score_correction_bias"}


def routing(keys: Keys, normed: bool) -> dict[str, Any]:
    """Read the experts of DeepSeek 3, where groups are off by default."""
    for name in ("scoring_func", "topk_method"):
        allowed = "sigmoid" if name == "scoring_func" else "noaux_tc"
        keys.only(name, allowed, why="the family has no other")
    keys.only("moe_layer_freq", 1, why="all layers after the first have experts")
    groups = keys.number("n_group", default=1)
    moe = sizes_of_experts(keys) | {"router": "sigmoid_topk", "n_routing_groups": groups}
    moe["topk_routing_group"] = keys.number("topk_group", default=1)
    return moe | {"norm_topk_prob": keys.flag("norm_topk_prob", normed)}


def write_routing(section: Decoder) -> dict[str, Any]:
    """Return the keys read by `routing`."""
    moe, config = section.moe, write_experts(section)
    config |= {"n_group": moe.n_routing_groups, "norm_topk_prob": moe.norm_topk_prob}
    return config | {"topk_group": moe.topk_routing_group if moe.n_routing_groups > 1 else 1}


class Dots1(Family):
    model_type = "dots1"
    architecture = "Dots1ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 32, "sliding_window": 4096}
    absent |= {"max_window_layers": 62}
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | MLP | NORMS | SHARED | EXPERTS | BIAS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu") | rope.read_rope(keys)
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"} | {"qk_norm": True}
        moe = routing(keys, normed=False)
        return options | {"moe": moe} | patterns.read_windows(keys, options["n_layers"])

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section) | write_routing(section)
        config["attention_bias"] = all(section.attention_biases.values())
        window = patterns.window_of(section)
        config |= {"sliding_window": window, "max_window_layers": 0 if window else section.n_layers}
        return config | {"layer_types": patterns.attention_types(section)}
