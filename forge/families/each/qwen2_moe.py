"""Qwen 1.5 and 2 with experts: Qwen 2 with experts by a softmax, and a gated shared one."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import ATTENTION, MLP, NORMS, OUTSIDE, activation, sizes, write_sizes
from forge.families.each.qwen3_moe import routing, write_routing
from forge.families.each.qwen3_next import EXPERTS, SHARED
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING


class Qwen2Moe(Family):
    model_type = "qwen2_moe"
    architecture = "Qwen2MoeForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 16, "sliding_window": 4096}
    absent |= {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
    absent |= {"max_window_layers": 28}
    outside = OUTSIDE
    block = ATTENTION | MLP | NORMS | SHARED | EXPERTS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="silu") | rope.read_rope(keys)
        biases = bool(keys.take("qkv_bias", default=True))
        options |= {f"{letter}_bias": biases for letter in "qkv"}
        moe = routing(keys) | {"shared_experts": 1, "shared_expert_gate": True}
        moe["shared_hidden_dim"] = keys.number("shared_expert_intermediate_size", default=5632)
        return options | {"moe": moe} | self.windows(keys, options["n_layers"])

    def windows(self, keys: Keys, n_layers: int | None) -> dict[str, Any]:
        """Read the windows of every second of the layers before max_window_layers."""
        used = bool(keys.take("use_sliding_window", default=False))
        window = keys.number("sliding_window", default=None)
        last = keys.number("max_window_layers", default=0)
        usual = [
            SLIDING if used and layer % 2 == 0 and layer < last else FULL
            for layer in range(n_layers or 0)
        ]
        types = patterns.read_types(keys, n_layers, usual)
        if SLIDING in types and not (used and window):
            keys.faults.append("layer_types has windows, and the other keys have none")
        return patterns.layer_options(types, {SLIDING: {"sliding_window_size": window or 0}})

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section) | write_routing(section)
        config["qkv_bias"] = section.attention_biases["q"]
        config["shared_expert_intermediate_size"] = section.moe.shared_width(section)
        window = patterns.window_of(section)
        config |= {"use_sliding_window": window is not None, "sliding_window": window}
        config["max_window_layers"] = section.n_layers
        return config | {"layer_types": patterns.attention_types(section)}
