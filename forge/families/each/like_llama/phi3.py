"""Phi 3, 3.5 and 4: Llama with queries, keys and values, gate and up projection in one matrix."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import FUSED_MLP, NORMS, OUTSIDE, activation, sizes, write_sizes
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.table import FolderTensor, Table, of_keys, of_queries, of_values

PARTS = {"q": of_queries, "k": of_keys, "v": of_values}
ATTENTION: Table = {
    f"attention.w{letter}.weight": FolderTensor(name="self_attn.qkv_proj.weight", rows=rows)
    for letter, rows in PARTS.items()
}
ATTENTION["attention.wo.weight"] = "self_attn.o_proj.weight"


class Phi3(Family):
    model_type = "phi3"
    architecture = "Phi3ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"original_max_position_embeddings": 4096}
    partial_rotary = True
    outside = OUTSIDE
    block = ATTENTION | FUSED_MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1e-5) | activation(keys, default="silu") | rope.read_rope(keys)
        if options.get("rope_type") not in ("default", "longrope"):
            keys.faults.append("transformers' Phi 3 has no rope_type but default and longrope")
        return options | {"sliding_window_size": keys.number("sliding_window", default=0)}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        if section.rope_type == "longrope":
            length = section.original_max_position_embeddings
            config["original_max_position_embeddings"] = length
        config["pad_token_id"] = None  # of the class it is beyond a smaller vocabulary
        return config | {"sliding_window": patterns.window_of(section)}
