"""GLM-5: DeepSeek 3.2 in other widths, with indexers that rotate adjacent pairs."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mla import MLA
from forge.families.each.deepseek_v32 import DeepSeekV32
from forge.families.keys import Keys

OWN_INDEXER = "full"


class GlmMoeDsa(DeepSeekV32):
    model_type = "glm_moe_dsa"
    architecture = "GlmMoeDsaForCausalLM"
    absent: ClassVar[dict[str, Any]] = DeepSeekV32.absent | {"index_n_heads": 32}
    absent |= {"q_lora_rank": 2048, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5}

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        own_of_each(keys, options["n_layers"] or 0)
        keys.only("indexer_rope_interleave", True, why="no model of the family is without")
        keys.inert("index_share_for_mtp_iteration", "moe_router_dtype")
        options["mixer"]["indexer_rope_interleave"] = True
        return options

    def content(self, section: Decoder) -> dict[str, Any]:
        config, mixer = super().content(section), section.mixer
        assert isinstance(mixer, MLA)
        if not mixer.indexer_rope_interleave:
            raise ValueError("model.mixer.indexer_rope_interleave=false")
        return config


def own_of_each(keys: Keys, count: int) -> None:
    """Refuse layers that repeat the choice of an earlier layer's indexer."""
    types = list(keys.take("indexer_types", default=[OWN_INDEXER] * count))
    if set(types) - {OWN_INDEXER}:
        keys.faults.append("indexer_types: in forge each layer has an indexer of its own")
    keys.only("index_topk_freq", 1, None, why="in forge each layer has an indexer of its own")
    keys.only("index_topk_pattern", None, "F" * count, why="the same")
    keys.inert("index_skip_topk_offset")
