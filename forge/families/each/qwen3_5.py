"""Qwen 3.5, its text: Qwen3-Next with unfused projections, dense and with experts."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet
from forge.families.each.qwen3_next import DELTA, Qwen3Next, of_heads
from forge.families.keys import Keys
from forge.families.table import FolderTensor, Table

MODULES = {"z": "in_proj_z", "b": "in_proj_b", "a": "in_proj_a"}


def delta(mixer: GatedDeltaNet) -> Table:
    """Return the table of a gated delta net: queries, keys and values one after the other."""
    table: Table = dict(DELTA)
    widths = (mixer.key_width, mixer.key_width, mixer.value_width)
    for number, letter in enumerate("qkv"):
        rows = of_heads(1, widths, number)
        stored = FolderTensor(name="linear_attn.in_proj_qkv.weight", rows=rows)
        table[f"attention.w{letter}.weight"] = stored
        name = "linear_attn.conv1d.weight"
        table[f"attention.conv_{letter}"] = FolderTensor(name=name, rows=rows, singleton=1)
    for letter, module in MODULES.items():
        table[f"attention.w{letter}.weight"] = f"linear_attn.{module}.weight"
    return table


class Qwen35Moe(Qwen3Next):
    model_type = "qwen3_5_moe_text"
    architecture = "Qwen3_5MoeForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "partial_rotary_factor": 0.25}
    absent |= {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    absent |= {"norm_topk_prob": True, "intermediate_size": 512}

    def common(self, keys: Keys) -> dict[str, Any]:
        keys.only(
            "mtp_use_dedicated_embeddings", False, None, why="forge's modules share the table"
        )
        keys.inert("mamba_ssm_dtype")
        return super().common(keys)

    def routing(self, keys: Keys) -> dict[str, Any]:
        for name, value in ("decoder_sparse_step", 1), ("mlp_only_layers", []):
            keys.only(name, value, None, why="transformers has experts in every layer")
        keys.only("norm_topk_prob", True, why="transformers normalises always")
        return super().routing(keys)

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | delta(mixer) if isinstance(mixer, GatedDeltaNet) else self.block


class Qwen35(Qwen35Moe):
    model_type = "qwen3_5_text"
    architecture = "Qwen3_5ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4, "partial_rotary_factor": 0.25}

    def options(self, keys: Keys) -> dict[str, Any]:
        return self.common(keys)

    def content(self, section: Decoder) -> dict[str, Any]:
        return self.write_common(section)
