"""Granite 4: Mamba-2 layers beside attention, dense or with experts and a shared one."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mamba2 import Mamba2
from forge.families import patterns
from forge.families.common import ATTENTION, NORMS
from forge.families.each.hybrid.mamba import (
    ABSENT,
    hybrid_types,
    mamba_table,
    mixers_of,
    read_mamba,
    write_mamba,
    written_types,
)
from forge.families.each.like_llama.granite import EXPERTS, Granite
from forge.families.keys import Keys
from forge.families.patterns import LINEAR
from forge.families.table import FolderTensor, Table, part

WIDTH = "shared_intermediate_size"
DENSE: Table = {}
for prefix in ("feed_forward.", "feed_forward.shared."):
    DENSE[f"{prefix}w_down.weight"] = "shared_mlp.output_linear.weight"
    for number, name in enumerate(("w_gate", "w_up")):
        stored = FolderTensor(name="shared_mlp.input_linear.weight", rows=part(number))
        DENSE[f"{prefix}{name}.weight"] = stored


class GraniteMoeHybrid(Granite):
    model_type = "granitemoehybrid"
    architecture = "GraniteMoeHybridForCausalLM"
    absent: ClassVar[dict[str, Any]] = ABSENT | {"num_local_experts": 8, WIDTH: 1024}
    block = ATTENTION | NORMS | EXPERTS | DENSE

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.only("mlp_bias", False, why="forge's experts have no such biases")
        options = super().options(keys)
        if options["activation"] != "silu":
            keys.faults.append("hidden_act: transformers has it in Mamba-2 layers too, forge silu")
        if keys.take("position_embedding_type", default=None) != "rope":
            options["position"] = "none"
        types = hybrid_types(keys, options["n_layers"])
        mixer = read_mamba(keys, options["dim"])
        width, experts = keys.number(WIDTH), keys.number("num_local_experts")
        if not experts:
            keys.inert("num_experts_per_tok")
            options["ffn_hidden_dim"] = width
        else:
            moe = {"num_experts": experts, "top_k": keys.number("num_experts_per_tok", default=2)}
            moe |= {"norm_topk_prob": True, "router": "softmax_topk"}
            options["moe"] = moe | {"shared_experts": 1, "shared_hidden_dim": width}
        return options | patterns.layer_options(types, {LINEAR: {"mixer": mixer}})

    def content(self, section: Decoder) -> dict[str, Any]:
        mixer, moe = mixers_of(section)[0], section.moe
        config = super().content(section) | write_mamba(mixer, section.dim)
        del config["mlp_bias"]
        config["position_embedding_type"] = "rope" if section.position == "rope" else None
        config |= {"layer_types": written_types(section), "num_local_experts": moe.num_experts}
        if not section.is_moe:
            return config | {WIDTH: section.computed_ffn_hidden_dim}
        config |= {"intermediate_size": section.expert_hidden_dim}
        config[WIDTH] = moe.shared_width(section)
        return config | {"num_experts_per_tok": moe.top_k}

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | (mamba_table(mixer, "mamba.") if isinstance(mixer, Mamba2) else {})
