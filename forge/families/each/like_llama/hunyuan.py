"""Hunyuan, dense: Llama with norms of queries and keys after the rotation."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families.common import ATTENTION, MLP, NORMS
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.table import Table

NORMED: Table = {
    "attention.q_norm.weight": "self_attn.query_layernorm.weight",
    "attention.k_norm.weight": "self_attn.key_layernorm.weight",
}


class HunyuanDense(Llama):
    model_type = "hunyuan_v1_dense"
    architecture = "HunYuanDenseV1ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"rms_norm_eps": 1e-5}
    block = ATTENTION | MLP | NORMS | NORMED

    def options(self, keys: Keys) -> dict[str, Any]:
        keys.only("mlp_bias", False, why="transformers has no such biases here")
        keys.only("use_qk_norm", True, why="transformers has these norms always")
        keys.only("use_cla", False, why="forge shares no keys among layers")
        keys.inert("eod_token_id", "im_start_id", "im_end_id", "im_newline_id", "pad_id")
        options = super().options(keys) | {"qk_norm": True, "qk_norm_after_rope": True}
        stated = keys.take("rope_parameters", "rope_scaling", default=None) or {}
        alpha = stated.get("alpha")
        if alpha and options.get("rope_type") == "dynamic":
            # A fixed alpha stretches the base alone, whatever the length of a text.
            width = options["head_dim"] or options["dim"] // options["n_heads"]
            options["rope_theta"] *= alpha ** (width / (width - 2))
            options["rope_type"] = "default"
            del options["rope_factor"], options["original_max_position_embeddings"]
        return options

    def content(self, section: Decoder) -> dict[str, Any]:
        config = super().content(section)
        del config["mlp_bias"]
        return config
