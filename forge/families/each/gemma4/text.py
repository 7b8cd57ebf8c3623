"""Gemma 4, its text: wider heads in full layers, and by size values that are keys, experts beside
dense layers, inputs of single layers, and layers that read the keys of earlier ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.shared_attention import SharedAttention
from forge.families import patterns, rope
from forge.families.common import OUTSIDE
from forge.families.each.gemma import Gemma
from forge.families.each.gemma2 import NORMS
from forge.families.each.gemma3 import Gemma3
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING
from forge.families.table import FolderTensor, Table, part

PARTIAL = "partial_rotary_factor"
SHARED = "shared_"
"""Prefix of the kinds of layers that read the keys of earlier layers."""
ROTATIONS: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
BRANCHES: Table = {
    "dense_norm.weight": "pre_feedforward_layernorm.weight",
    "dense_post_norm.weight": "post_feedforward_layernorm_1.weight",
    "experts_post_norm.weight": "post_feedforward_layernorm_2.weight",
    "feed_forward.input_norm.weight": "pre_feedforward_layernorm_2.weight",
    "feed_forward.router.weight": "router.proj.weight",
    "feed_forward.router.input_scale": "router.scale",
    "feed_forward.router.expert_scale": "router.per_expert_scale",
    "feed_forward.experts.w_gate": FolderTensor(
        name="experts.gate_up_proj", rows=part(0, 1), dim=1
    ),
    "feed_forward.experts.w_up": FolderTensor(name="experts.gate_up_proj", rows=part(1, 1), dim=1),
    "feed_forward.experts.w_down": "experts.down_proj",
}
DENSE: Table = {
    f"dense.{name}.weight": f"mlp.{hf_name}.weight"
    for name, hf_name in {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}.items()
}
LAYERS: Table = {
    "layer_scalar.factor": "layer_scalar",
    "layer_input_gate.weight": "per_layer_input_gate.weight",
    "layer_input_projection.weight": "per_layer_projection.weight",
    "layer_input_norm.weight": "post_per_layer_input_norm.weight",
}
INPUTS: Table = {
    "layer_inputs.table.weight": "embed_tokens_per_layer.weight",
    "layer_inputs.projection.weight": "per_layer_model_projection.weight",
    "layer_inputs.norm.weight": "per_layer_projection_norm.weight",
}
EXPERTS: dict[str, Any] = {"beside_dense": True, "branch_norms": True, "router_norm": True}
EXPERTS |= {"per_expert_scale": True}


class Gemma4(Gemma):
    model_type = "gemma4_text"
    architecture = "Gemma4ForCausalLM"
    outside = OUTSIDE | INPUTS
    block = Gemma3.block | NORMS | BRANCHES | DENSE | LAYERS
    turns_by_kind = True
    window: ClassVar[int] = 512
    """Window of a config.json without one."""
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4, "head_dim": 256}
    absent |= {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144}

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.inert("hidden_act")
        options: dict[str, Any] = self.common(keys, "hidden_activation")
        options |= {
            "norm_placement": "both",
            "norm_unit_offset": False,
            "qk_norm": True,
            "query_scale": 1.0,
        }
        options |= {"v_norm": True, "v_norm_with_scale": False, "layer_scalar": True}
        options["final_logits_soft_cap"] = keys.number("final_logit_softcapping", default=0.0)
        if keys.take("final_logit_softcapping", default=None) == 0:
            keys.faults.append("final_logit_softcapping=0: transformers divides logits by it")
        why = "forge's layers see tokens before"
        keys.only("use_bidirectional_attention", None, False, "vision", why=why)
        options["per_layer_input_width"] = self.inputs(keys, options["vocab_size"])
        count = options["n_layers"] or 0
        usual = [FULL if layer % 6 == 5 else SLIDING for layer in range(count)]
        types = patterns.read_types(keys, options["n_layers"], usual)
        types[-1:] = [FULL]  # transformers makes it so
        options |= {"moe": experts} if (experts := self.branches(keys)) else {}
        return options | self.kinds(keys, types, options)

    def inputs(self, keys: Keys, vocab: int | None) -> int:
        """Read the width of the inputs of single layers."""
        width = keys.number("hidden_size_per_layer_input", default=0)
        rows = keys.number("vocab_size_per_layer_input", default=vocab)
        if width and rows != vocab:
            keys.faults.append(f"vocab_size_per_layer_input={rows}: forge has {vocab} rows there")
        return width

    def branches(self, keys: Keys) -> dict[str, Any]:
        """Read the options of experts, none without them."""
        return read_branches(keys)

    def kinds(self, keys: Keys, types: list[str], options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of each kind of layers."""
        longest, of_full = options["max_seq_len"], read_full(keys, types)
        shared = keys.number("num_kv_shared_layers", default=0)
        wide = {"ffn_hidden_dim": options["ffn_hidden_dim"]}
        if keys.take("use_double_wide_mlp", default=False):
            wide["ffn_hidden_dim"] = 2 * (options["ffn_hidden_dim"] or 0)
        stated = keys.take("rope_parameters", default=None) or ROTATIONS
        by_kind: dict[str, dict[str, Any]] = {}
        for kind, usual in ROTATIONS.items():
            of_kind = {name: options[name] for name in ("head_dim", "n_kv_heads")}
            of_kind |= {"share_kv_projections": False, "sliding_window_size": 0}
            theta = usual["rope_theta"]
            turned = stated.get(kind, usual)
            if turned.get("rope_type") == "default" and turned.get(PARTIAL, 1.0) != 1.0:
                why = "transformers turns whole heads by the type default"
                keys.faults.append(f"rope_parameters.{kind}.{PARTIAL}={turned[PARTIAL]}: {why}")
            of_kind |= rope.of_parameters(keys, turned, theta=theta, longest=longest)
            by_kind[kind] = of_kind
        by_kind[SLIDING]["sliding_window_size"] = keys.number("sliding_window", default=self.window)
        by_kind[FULL] |= of_full
        first = len(types) - shared
        if shared and set(types[:first]) != set(types):
            keys.faults.append(f"num_kv_shared_layers={shared}: no earlier layer has their keys")
        for kind in ROTATIONS:
            by_kind[SHARED + kind] = by_kind[kind] | wide | {"mixer": {"schema": SHARING}}
        named = [kind if n < first else SHARED + kind for n, kind in enumerate(types)]
        return patterns.layer_options(named, by_kind)

    def content(self, section: Decoder) -> dict[str, Any]:
        config = self.write_common(section)
        config["hidden_activation"] = config.pop("hidden_act")
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        types = patterns.attention_types(section)
        shared = [isinstance(layer.mixer, SharedAttention) for layer in layers]
        count = sum(shared)
        if not all(shared[len(shared) - count :]):
            raise ValueError("model.layers with shared attention before other layers")
        full = layers[types.index(FULL)] if FULL in types else layers[0]
        sliding = layers[types.index(SLIDING)] if SLIDING in types else full
        by_kind = {FULL: full, SLIDING: sliding}
        config["rope_parameters"] = {kind: rotation_of(layer) for kind, layer in by_kind.items()}
        config |= {"head_dim": sliding.computed_head_dim, "num_key_value_heads": sliding.kv_heads}
        config["global_head_dim"] = full.computed_head_dim
        config["attention_k_eq_v"] = full.share_kv_projections
        of_values = full.kv_heads if full.share_kv_projections else None
        config["num_global_key_value_heads"] = of_values
        config["sliding_window"] = patterns.window_of(section) or self.window
        config["final_logit_softcapping"] = section.final_logits_soft_cap or None
        config |= {"hidden_size_per_layer_input": section.per_layer_input_width}
        config |= {"vocab_size_per_layer_input": section.vocab_size, "layer_types": types}
        wide = layers[-1].computed_ffn_hidden_dim != layers[0].computed_ffn_hidden_dim
        config |= {"num_kv_shared_layers": count, "use_double_wide_mlp": bool(count and wide)}
        config["intermediate_size"] = layers[0].computed_ffn_hidden_dim
        return config | write_branches(section)

    def table(self, layer: Decoder) -> Table:
        if layer.is_moe:
            return self.block
        return {name: theirs for name, theirs in self.block.items() if "experts" not in name}

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also keys and values of layers that read those of earlier ones, and the norm."""
        parts = name.removeprefix(f"{self.prefix}{self.layers}").split(".")
        if parts[0].isdigit() and parts[1:2] == ["self_attn"] and int(parts[0]) < section.n_layers:
            layer = section.of_kind(section.kind_of(int(parts[0])).name)
            if isinstance(layer.mixer, SharedAttention):
                return parts[2] in ("k_proj", "v_proj", "k_norm", "v_norm")
        return super().ignored(name, section)


SHARING = SharedAttention.schema_name


def rotation_of(layer: Decoder) -> dict[str, Any]:
    """Return the rotation of a layer; transformers knows no factor of a proportional one."""
    rotation = rope.rope_parameters(layer)
    if layer.stretches == "proportional":
        del rotation["factor"]
    elif layer.partial_rotary_factor != 1:  # transformers turns whole heads by the other types
        raise ValueError(f"model.partial_rotary_factor={layer.partial_rotary_factor}")
    return rotation


def read_full(keys: Keys, types: list[str]) -> dict[str, Any]:
    """Return the heads of full layers.

    Published files have two keys for them; transformers from 5.24 on writes each layer's.
    """
    same = bool(keys.take("attention_k_eq_v", default=False))
    heads = {"head_dim": keys.number("global_head_dim", default=512)}
    kv_heads = keys.number("num_global_key_value_heads", default=None)
    if same and kv_heads is not None:
        heads["n_kv_heads"] = kv_heads
    by_layer = keys.take("per_layer_config", default=None)
    if by_layer is not None:
        full = {number for number, kind in enumerate(types) if kind == FULL}
        entries = {int(number): entry for number, entry in by_layer.items()}
        entry = next(iter(entries.values()), {})
        known = {"head_dim": "head_dim", "num_key_value_heads": "n_kv_heads"}
        equal = set(entries) == full and all(other == entry for other in entries.values())
        if not equal or set(entry) - {*known}:
            keys.faults.append("per_layer_config: it says more than equal heads of full layers")
        heads |= {known[name]: value for name, value in entry.items() if name in known}
    return heads | {"share_kv_projections": same}


def read_branches(keys: Keys) -> dict[str, Any]:
    """Return the options of experts, none without them."""
    if not keys.take("enable_moe_block", default=False):
        keys.inert("num_experts", "top_k_experts", "moe_intermediate_size")
        return {}
    return EXPERTS | {
        "num_experts": keys.number("num_experts"),
        "top_k": keys.number("top_k_experts"),
        "ffn_hidden_dim": keys.number("moe_intermediate_size"),
    }


def write_branches(section: Decoder) -> dict[str, Any]:
    """Return the keys read by `read_branches`."""
    if not section.is_moe:
        return {"enable_moe_block": False}
    moe = {"num_experts": section.moe.num_experts, "top_k_experts": section.moe.top_k}
    return {"enable_moe_block": True, "moe_intermediate_size": section.expert_hidden_dim} | moe
