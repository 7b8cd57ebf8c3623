"""Qwen3-Next: gated delta nets and, in every fourth layer, attention with an output gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet
from forge.config.model.tensors import TensorSpec
from forge.families import patterns, rope
from forge.families.common import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    PROJECTIONS,
    QK_NORM,
    activation,
    experts,
    sizes,
    write_sizes,
)
from forge.families.each.qwen3_moe import routing, write_routing
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import FULL, LINEAR
from forge.families.table import Rows, Table, Theirs

WIDTHS = {
    "gdn_conv_kernel_dim": "linear_conv_kernel_dim",
    "gdn_key_head_dim": "linear_key_head_dim",
    "gdn_value_head_dim": "linear_value_head_dim",
    "gdn_num_key_heads": "linear_num_key_heads",
    "gdn_num_value_heads": "linear_num_value_heads",
}
SHARED: Table = {
    f"feed_forward.shared.{ours}.weight": f"mlp.shared_expert.{theirs}.weight"
    for ours, theirs in PROJECTIONS.items()
}
EXPERTS = experts("mlp.experts", PROJECTIONS, "mlp.gate.weight")
EXPERTS["feed_forward.shared_gate.weight"] = "mlp.shared_expert_gate.weight"
DELTA: Table = {
    "attention.a_log": "linear_attn.A_log",
    "attention.dt_bias": "linear_attn.dt_bias",
    "attention.norm.weight": "linear_attn.norm.weight",
    "attention.wo.weight": "linear_attn.out_proj.weight",
}


def delta(mixer: GatedDeltaNet) -> Table:
    """What makes queries, keys, values, gates and decays: theirs is by the heads of keys, each with
    its queries, keys, values and gates, or with its b and a; convolutions are of all channels.
    """
    of_values = mixer.gdn_num_value_heads // mixer.gdn_num_key_heads
    key, value = mixer.gdn_key_head_dim, mixer.gdn_value_head_dim * of_values
    found: Table = dict(DELTA)
    for names, place, widths in (
        ("qkvz", "in_proj_qkvz", (key, key, value, value)),
        ("ba", "in_proj_ba", (of_values, of_values)),
    ):
        for number, each in enumerate(names):
            rows = of_heads(mixer.gdn_num_key_heads, widths, number)
            theirs = Theirs(name=f"linear_attn.{place}.weight", rows=rows)
            found[f"attention.w{each}.weight"] = theirs
    widths = (mixer.key_width, mixer.key_width, mixer.value_width)
    for number, each in enumerate("qkv"):
        rows = of_heads(1, widths, number)
        name = "linear_attn.conv1d.weight"
        found[f"attention.conv_{each}"] = Theirs(name=name, rows=rows, singleton=1)
    return found


def of_heads(heads: int, widths: Sequence[int], number: int) -> Rows:
    """One of the parts of these widths that each head has."""
    begin, whole = sum(widths[:number]), sum(widths)

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        return [head * whole + begin + i for head in range(heads) for i in range(widths[number])]

    return rows


class Qwen3Next(Family):
    model_type = "qwen3_next"
    architecture = "Qwen3NextForCausalLM"
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "partial_rotary_factor": 0.25}
    absent |= {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
    absent |= {"norm_topk_prob": True}
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | MLP | NORMS | SHARED | EXPERTS

    def options(self, keys: Keys) -> dict[str, Any]:
        found = sizes(keys) | activation(keys, default="silu")
        if found["activation"] != "silu":
            said = f"hidden_act={keys.take('hidden_act', default='silu')!r}"
            keys.faults.append(f"{said}: transformers has it in delta nets too, forge silu")
        found["head_dim"] = found["head_dim"] or 256
        found |= rope.read(keys) | {"norm_unit_offset": True, "qk_norm": True}
        found["attention_output_gate"] = True
        biases = bool(keys.take("attention_bias", default=False))
        found |= {f"{each}_bias": biases for each in "qkvo"}
        moe = routing(keys) | {"shared_experts": 1, "shared_expert_gate": True}
        moe["shared_hidden_dim"] = keys.number("shared_expert_intermediate_size", default=512)
        count = found["n_layers"] or 0
        every = keys.number("full_attention_interval", default=4)
        usual = [LINEAR if (layer + 1) % every else FULL for layer in range(count)]
        types = patterns.read_types(keys, found["n_layers"], usual)
        mixer = {ours: keys.number(theirs) for ours, theirs in WIDTHS.items()}
        own = {LINEAR: {"mixer": {"schema": "gated_delta_net", **mixer}}}
        return found | {"moe": moe} | patterns.options(types, own)

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        mixers = [one.mixer for one in layers if isinstance(one.mixer, GatedDeltaNet)]
        if not mixers:
            raise ValueError("model.layers without a gated delta net")
        found = write_sizes(section) | rope.write(section) | write_routing(section)
        found |= {theirs: getattr(mixers[0], ours) for ours, theirs in WIDTHS.items()}
        found["attention_bias"] = all(section.attention_biases.values())
        found["shared_expert_intermediate_size"] = section.moe.shared_width(section)
        linear = [isinstance(one.mixer, GatedDeltaNet) for one in layers]
        return found | {"layer_types": [LINEAR if each else FULL for each in linear]}

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | delta(mixer) if isinstance(mixer, GatedDeltaNet) else self.block

    def ignored(self, name: str, section: Decoder) -> bool:
        """Also the layers that predict further tokens."""
        return name.startswith(("mtp.", "model.mtp.")) or super().ignored(name, section)
