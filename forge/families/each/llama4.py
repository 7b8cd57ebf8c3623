"""Llama 4, its text: chunks with rotation and full layers without, experts by one sigmoid."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import (
    ATTENTION,
    NORMS,
    OUTSIDE,
    PROJECTIONS,
    activation,
    adjacent_pairs,
    sizes,
    write_sizes,
)
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import CHUNKED, FULL
from forge.families.table import FolderTensor, Table, part

PLACE = "feed_forward.experts"
FEED_FORWARD: Table = {
    "feed_forward.router.weight": "feed_forward.router.weight",
    f"{PLACE}.w_gate": FolderTensor(
        name=f"{PLACE}.gate_up_proj", rows=part(0, 1), dim=1, transposed=True
    ),
    f"{PLACE}.w_up": FolderTensor(
        name=f"{PLACE}.gate_up_proj", rows=part(1, 1), dim=1, transposed=True
    ),
    f"{PLACE}.w_down": FolderTensor(name=f"{PLACE}.down_proj", transposed=True),
}
for ours, theirs in PROJECTIONS.items():
    FEED_FORWARD[f"feed_forward.{ours}.weight"] = f"feed_forward.{theirs}.weight"
    shared = f"feed_forward.shared_expert.{theirs}.weight"
    FEED_FORWARD[f"feed_forward.shared.{ours}.weight"] = shared
NO_ROTATION = {"position": "none", "chunk_attn_window_size": 0, "qk_norm": False}


class Llama4(Family):
    model_type = "llama4_text"
    architecture = "Llama4ForCausalLM"
    either = ("rope_interleave",)
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "head_dim": 128}
    outside = OUTSIDE
    block = ATTENTION | NORMS | FEED_FORWARD

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1e-5) | activation(keys, default="silu")
        options |= rope.read_rope(keys, theta=500_000.0)
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        expert = options["ffn_hidden_dim"]
        options["ffn_hidden_dim"] = keys.number("intermediate_size_mlp", default=16384)
        keys.inert("for_llm_compressor")
        moe = self.routing(keys, options["n_layers"] or 0) | {"ffn_hidden_dim": expert}
        normed = bool(keys.take("use_qk_norm", default=True))
        options |= {"qk_norm": normed, "qk_norm_with_scale": False, "qk_norm_after_rope": True}
        options["temperature_tuning"] = bool(keys.take("attn_temperature_tuning", default=True))
        options["temperature_tuning_scale"] = keys.number("attn_scale", default=0.1)
        options["temperature_tuning_floor"] = keys.number("floor_scale", default=8192)
        return options | {"moe": moe} | self.pattern(keys, options)

    def routing(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        """Read the routing options: experts in every n-th layer, and one shared expert."""
        step = keys.number("interleave_moe_layer_step", default=1)
        usual = list(range(step - 1, n_layers, step))
        if list(keys.take("moe_layers", default=usual)) != usual:
            keys.faults.append(
                "moe_layers: they are every n-th layer, by interleave_moe_layer_step"
            )
        return {
            "num_experts": keys.number("num_local_experts", default=16),
            "top_k": keys.number("num_experts_per_tok", default=1),
            "frequency": step,
            "shared_experts": 1,
            "router": "sigmoid_topk",
            "norm_topk_prob": False,
            "score_on_input": True,
        }

    def pattern(self, keys: Keys, found: dict[str, Any]) -> dict[str, Any]:
        """Return the kinds of layers.

        Layers with rotation attend inside chunks; the others have full attention without rotation.
        """
        count = found["n_layers"] or 0
        every = keys.number("no_rope_layer_interval", default=4)
        usual = [int((layer + 1) % every != 0) for layer in range(count)]
        rotates = list(keys.take("no_rope_layers", default=None) or usual)[:count]
        types = [CHUNKED if turned else FULL for turned in rotates]
        if patterns.read_types(keys, found["n_layers"], types) != types:
            keys.faults.append("layer_types: the layers that rotate are those with chunks")
        chunk = {"chunk_attn_window_size": keys.number("attention_chunk_size", default=8192)}
        return patterns.layer_options(types, {CHUNKED: chunk, FULL: NO_ROTATION}, plain=CHUNKED)

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        turning = [layer for layer in layers if layer.position == "rope"]
        first, moe = (turning or layers)[0], section.moe
        config = write_sizes(section) | rope.write_rope(first)
        config["intermediate_size"] = section.expert_hidden_dim
        config["intermediate_size_mlp"] = section.computed_ffn_hidden_dim
        config["attention_bias"] = all(section.attention_biases.values())
        config |= {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.top_k}
        config |= {"interleave_moe_layer_step": moe.frequency, "use_qk_norm": first.qk_norm}
        config["attn_temperature_tuning"] = section.temperature_tuning
        config["attn_scale"] = section.temperature_tuning_scale
        config["floor_scale"] = section.temperature_tuning_floor
        config["no_rope_layers"] = [int(layer.position == "rope") for layer in layers]
        config["layer_types"] = [CHUNKED if turns else FULL for turns in config["no_rope_layers"]]
        return config | {"attention_chunk_size": first.chunk_attn_window_size or 8192}

    def table(self, layer: Decoder) -> Table:
        """Return the table, with the rotated projections reordered."""
        return self.block | adjacent_pairs(layer)
