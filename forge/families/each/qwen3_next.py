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
from forge.families.table import FolderTensor, Rows, Table

WIDTHS = {
    "gdn_conv_kernel_dim": "linear_conv_kernel_dim",
    "gdn_key_head_dim": "linear_key_head_dim",
    "gdn_value_head_dim": "linear_value_head_dim",
    "gdn_num_key_heads": "linear_num_key_heads",
    "gdn_num_value_heads": "linear_num_value_heads",
}
SHARED: Table = {
    f"feed_forward.shared.{name}.weight": f"mlp.shared_expert.{hf_name}.weight"
    for name, hf_name in PROJECTIONS.items()
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
    """Return the table of the projections and convolutions of a gated delta net.

    A stored projection is ordered by the heads of keys: for each head its queries, keys, values and
    gates, or its b and a. A stored convolution has all channels.
    """
    of_values = mixer.gdn_num_value_heads // mixer.gdn_num_key_heads
    key, value = mixer.gdn_key_head_dim, mixer.gdn_value_head_dim * of_values
    table: Table = dict(DELTA)
    for names, module, widths in (
        ("qkvz", "in_proj_qkvz", (key, key, value, value)),
        ("ba", "in_proj_ba", (of_values, of_values)),
    ):
        for number, letter in enumerate(names):
            rows = of_heads(mixer.gdn_num_key_heads, widths, number)
            stored = FolderTensor(name=f"linear_attn.{module}.weight", rows=rows)
            table[f"attention.w{letter}.weight"] = stored
    widths = (mixer.key_width, mixer.key_width, mixer.value_width)
    for number, letter in enumerate("qkv"):
        rows = of_heads(1, widths, number)
        name = "linear_attn.conv1d.weight"
        table[f"attention.conv_{letter}"] = FolderTensor(name=name, rows=rows, singleton=1)
    return table


def of_heads(heads: int, widths: Sequence[int], number: int) -> Rows:
    """Choose the rows of part `number` in every head; widths: the parts of a head."""
    begin, width = sum(widths[:number]), sum(widths)

    def rows(layer: Decoder, ours: TensorSpec) -> Sequence[int]:
        return [head * width + begin + i for head in range(heads) for i in range(widths[number])]

    return rows


FURTHER: Table = {
    "embedding_norm.weight": "pre_fc_norm_embedding.weight",
    "hidden_norm.weight": "pre_fc_norm_hidden.weight",
    "projection.weight": "fc.weight",
    "norm.weight": "norm.weight",
}
"""A module for a further token, beside the model."""
APART, MODULES = "mtp.", "mtp_num_hidden_layers"


class Qwen3Next(Family):
    model_type = "qwen3_next"
    architecture = "Qwen3NextForCausalLM"
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "partial_rotary_factor": 0.25}
    absent |= {"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512}
    absent |= {"norm_topk_prob": True}
    outside = OUTSIDE
    further = FURTHER
    block = ATTENTION | QK_NORM | MLP | NORMS | SHARED | EXPERTS

    def options(self, keys: Keys) -> dict[str, Any]:
        return self.common(keys) | {"moe": self.routing(keys)}

    def routing(self, keys: Keys) -> dict[str, Any]:
        """Read the experts and the shared one."""
        moe = routing(keys) | {"shared_experts": 1, "shared_expert_gate": True}
        moe["shared_hidden_dim"] = keys.number("shared_expert_intermediate_size", default=512)
        return moe

    def common(self, keys: Keys) -> dict[str, Any]:
        """Return the options of all but the experts."""
        options = sizes(keys) | activation(keys, default="silu")
        if options["activation"] != "silu":
            setting = f"hidden_act={keys.take('hidden_act', default='silu')!r}"
            keys.faults.append(f"{setting}: transformers has it in delta nets too, forge silu")
        options["head_dim"] = options["head_dim"] or 256
        options |= rope.read_rope(keys) | {"norm_unit_offset": True, "qk_norm": True}
        options["attention_output_gate"] = True
        options["mtp_num_layers"] = keys.number(MODULES, "num_nextn_predict_layers", default=None)
        if (options["mtp_num_layers"] or 0) > 1:
            keys.faults.append(f"{MODULES}={options['mtp_num_layers']}: forge reads one module")
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkvo"}
        count = options["n_layers"] or 0
        every = keys.number("full_attention_interval", default=4)
        usual = [LINEAR if (layer + 1) % every else FULL for layer in range(count)]
        types = patterns.read_types(keys, options["n_layers"], usual)
        mixer = {option: keys.number(key) for option, key in WIDTHS.items()}
        by_kind = {LINEAR: {"mixer": {"schema": "gated_delta_net", **mixer}}}
        return options | patterns.layer_options(types, by_kind)

    def content(self, section: Decoder) -> dict[str, Any]:
        config = self.write_common(section) | self.write_routing(section)
        config["shared_expert_intermediate_size"] = section.moe.shared_width(section)
        return config

    def write_routing(self, section: Decoder) -> dict[str, Any]:
        """Return the keys of `routing` but those of the shared expert."""
        return write_routing(section)

    def write_common(self, section: Decoder) -> dict[str, Any]:
        """Return the keys read by `common`."""
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, GatedDeltaNet)]
        if not mixers:
            raise ValueError("model.layers without a gated delta net")
        config = write_sizes(section) | rope.write_rope(section)
        config |= {key: getattr(mixers[0], option) for option, key in WIDTHS.items()}
        config["attention_bias"] = all(section.attention_biases.values())
        if section.mtp_num_layers > 1:
            raise ValueError(f"model.mtp_num_layers={section.mtp_num_layers}")
        config[MODULES] = section.mtp_num_layers
        linear = [isinstance(layer.mixer, GatedDeltaNet) for layer in layers]
        return config | {"layer_types": [LINEAR if is_linear else FULL for is_linear in linear]}

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | delta(mixer) if isinstance(mixer, GatedDeltaNet) else self.block

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also modules for further tokens that are left out."""
        left_out = not section.mtp_num_layers and name.startswith(("mtp.", "model.mtp."))
        return left_out or super().ignored(name, section)

    def further_place(self, n_layers: int, depth: int) -> tuple[str, str]:
        return APART, f"layers.{depth}."
