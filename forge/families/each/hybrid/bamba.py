"""Bamba: Llama with Mamba-2 layers in the place of most of its attention."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mamba2 import Mamba2
from forge.families import patterns
from forge.families.common import ATTENTION, OUTSIDE, PROJECTIONS
from forge.families.each.hybrid.mamba import (
    ABSENT,
    mamba_table,
    mixers_of,
    read_mamba,
    write_mamba,
    written_types,
)
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.patterns import FULL, LINEAR
from forge.families.table import Table

INDICES, FACTOR, HALF = "attn_layer_indices", "partial_rotary_factor", 0.5
"""Keys; transformers rotates half of a head whatever the file says."""


class Bamba(Llama):
    model_type = "bamba"
    architecture = "BambaForCausalLM"
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = ABSENT | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    outside = OUTSIDE | {"norm.weight": "final_layernorm.weight"}
    block: ClassVar[Table] = ATTENTION | {
        f"feed_forward.{name}.{kind}": f"feed_forward.{hf_name}.{kind}"
        for name, hf_name in PROJECTIONS.items()
        for kind in ("weight", "bias")
    }
    block |= {
        "attention_norm.weight": "input_layernorm.weight",
        "feed_forward_norm.weight": "pre_ff_layernorm.weight",
    }

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.inert("num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb")
        options = super().options(keys) | {FACTOR: HALF}
        if options["activation"] != "silu":
            keys.faults.append("hidden_act: transformers has it in Mamba-2 layers too, forge silu")
        full = keys.take(INDICES, default=[]) or []
        count, dim = options["n_layers"] or 0, options["dim"]
        types = [FULL if layer in full else LINEAR for layer in range(int(count))]
        mixer = read_mamba(keys, None if dim is None else int(dim))
        return options | patterns.layer_options(types, {LINEAR: {"mixer": mixer}})

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section) | write_mamba(mixers_of(section)[0], section.dim)
        types = written_types(section)
        config[INDICES] = [layer for layer, name in enumerate(types) if name == FULL]
        return config

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | (mamba_table(mixer, "mamba.") if isinstance(mixer, Mamba2) else {})
