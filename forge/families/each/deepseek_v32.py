"""DeepSeek 3.2: DeepSeek 3 with an indexer, which chooses the keys of each query."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mla import MLA
from forge.families.each.deepseek_v3 import COMMON, DeepSeekV3
from forge.families.each.glm.glm4_moe_lite import dense_first
from forge.families.family import SELECTION_BIAS
from forge.families.keys import Keys
from forge.families.table import Table

INDEXER: Table = {
    "attention.indexer.queries.weight": "self_attn.indexer.wq_b.weight",
    "attention.indexer.keys.weight": "self_attn.indexer.wk.weight",
    "attention.indexer.key_norm.weight": "self_attn.indexer.k_norm.weight",
    "attention.indexer.key_norm.bias": "self_attn.indexer.k_norm.bias",
    "attention.indexer.weights.weight": "self_attn.indexer.weights_proj.weight",
}
SIZES = {
    "index_topk": ("indexer_topk", 2048),
    "index_head_dim": ("indexer_head_dim", 128),
    "index_n_heads": ("indexer_n_heads", 64),
}
"""Keys of config.json, with ours and their defaults."""
INDEXED, OLDER = "indexed_attention", "deepseek_sparse_attention"
"""Types of layers, by the newer and by the older name."""


class DeepSeekV32(DeepSeekV3):
    model_type = "deepseek_v32"
    model_types = ()
    architecture = "DeepseekV32ForCausalLM"
    block = COMMON | INDEXER | {SELECTION_BIAS: "mlp.gate.e_score_correction_bias"}
    absent: ClassVar[dict[str, Any]] = DeepSeekV3.absent | {
        name: default for name, (_, default) in SIZES.items()
    }

    def options(self, keys: Keys) -> dict[str, Any]:
        """Read the options; a published model attends to chosen keys."""
        count = keys.number("num_hidden_layers") or 0
        types = keys.take("layer_types", default=[INDEXED] * count)
        if set(types) - {INDEXED, OLDER}:
            keys.faults.append(f"layer_types: all layers of the family are {INDEXED}")
        options = super().options(keys)
        chosen = {ours: keys.number(name, default=value) for name, (ours, value) in SIZES.items()}
        options["mixer"] |= {"use_indexer": True, "indexer_sparse_training": True} | chosen
        return options

    def routing(self, keys: Keys) -> dict[str, Any]:
        moe, count = super().routing(keys), keys.number("num_hidden_layers") or 0
        if keys.has("mlp_layer_types"):
            first = moe["first_num_dense_layers"] = dense_first(keys, count)
            keys.only("first_k_dense_replace", first, why="mlp_layer_types says otherwise")
        return moe

    def content(self, section: Decoder) -> dict[str, Any]:
        config, mixer = super().content(section), section.mixer
        assert isinstance(mixer, MLA)
        if not mixer.use_indexer:
            raise ValueError("model.mixer.use_indexer=false")
        return config | {name: getattr(mixer, ours) for name, (ours, _) in SIZES.items()}
