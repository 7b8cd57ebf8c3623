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
    sizes,
    write_sizes,
)
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import CHUNKED, FULL
from forge.families.table import Table, Theirs, halves_of_pairs, part

PLACE = "feed_forward.experts"
FEED_FORWARD: Table = {
    "feed_forward.router.weight": "feed_forward.router.weight",
    f"{PLACE}.w_gate": Theirs(
        name=f"{PLACE}.gate_up_proj", rows=part(0, 1), dim=1, transposed=True
    ),
    f"{PLACE}.w_up": Theirs(name=f"{PLACE}.gate_up_proj", rows=part(1, 1), dim=1, transposed=True),
    f"{PLACE}.w_down": Theirs(name=f"{PLACE}.down_proj", transposed=True),
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
        found = sizes(keys, eps=1e-5) | activation(keys, default="silu")
        found |= rope.read(keys, theta=500_000.0)
        biases = bool(keys.take("attention_bias", default=False))
        found |= {f"{each}_bias": biases for each in "qkvo"}
        expert = found["ffn_hidden_dim"]
        found["ffn_hidden_dim"] = keys.number("intermediate_size_mlp", default=16384)
        keys.inert("for_llm_compressor")
        moe = self.routing(keys, found["n_layers"] or 0) | {"ffn_hidden_dim": expert}
        normed = bool(keys.take("use_qk_norm", default=True))
        found |= {"qk_norm": normed, "qk_norm_with_scale": False, "qk_norm_after_rope": True}
        found["temperature_tuning"] = bool(keys.take("attn_temperature_tuning", default=True))
        found["temperature_tuning_scale"] = keys.number("attn_scale", default=0.1)
        found["temperature_tuning_floor"] = keys.number("floor_scale", default=8192)
        return found | {"moe": moe} | self.pattern(keys, found)

    def routing(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        """Experts in every n-th layer, one shared."""
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
        """Which layers rotate, and see their chunk alone."""
        count = found["n_layers"] or 0
        every = keys.number("no_rope_layer_interval", default=4)
        usual = [int((layer + 1) % every != 0) for layer in range(count)]
        rotates = list(keys.take("no_rope_layers", default=None) or usual)[:count]
        types = [CHUNKED if turned else FULL for turned in rotates]
        if patterns.read_types(keys, found["n_layers"], types) != types:
            keys.faults.append("layer_types: the layers that rotate are those with chunks")
        chunk = {"chunk_attn_window_size": keys.number("attention_chunk_size", default=8192)}
        return patterns.options(types, {CHUNKED: chunk, FULL: NO_ROTATION}, plain=CHUNKED)

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        turning = [layer for layer in layers if layer.position == "rope"]
        first, moe = (turning or layers)[0], section.moe
        found = write_sizes(section) | rope.write(first)
        found["intermediate_size"] = section.expert_hidden_dim
        found["intermediate_size_mlp"] = section.computed_ffn_hidden_dim
        found["attention_bias"] = all(section.attention_biases.values())
        found |= {"num_local_experts": moe.num_experts, "num_experts_per_tok": moe.top_k}
        found |= {"interleave_moe_layer_step": moe.frequency, "use_qk_norm": first.qk_norm}
        found["attn_temperature_tuning"] = section.temperature_tuning
        found["attn_scale"] = section.temperature_tuning_scale
        found["floor_scale"] = section.temperature_tuning_floor
        found["no_rope_layers"] = [int(layer.position == "rope") for layer in layers]
        found["layer_types"] = [CHUNKED if turns else FULL for turns in found["no_rope_layers"]]
        return found | {"attention_chunk_size": first.chunk_attn_window_size or 8192}

    def table(self, layer: Decoder) -> Table:
        """Theirs rotates adjacent pairs, ours those half a head apart, unless told otherwise."""
        if layer.position != "rope" or layer.rope_interleave:
            return self.block
        turned: Table = {}
        for each, heads in ("q", layer.n_heads), ("k", layer.kv_heads):
            rows = halves_of_pairs(heads, layer.rotary_dim)
            for kind in ("weight", "bias"):
                name = f"self_attn.{each}_proj.{kind}"
                turned[f"attention.w{each}.{kind}"] = Theirs(name=name, rows=rows)
        return self.block | turned
