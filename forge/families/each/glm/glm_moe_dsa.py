"""GLM-5 and later: DeepSeek 3.2 in other widths, with indexers that rotate adjacent pairs, and
from GLM-5.2 on layers that share the indexer of an earlier layer.
"""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mla import MLA
from forge.families import patterns
from forge.families.each.deepseek_v32 import DeepSeekV32
from forge.families.keys import Keys

FULL, SHARED = "full", "shared"
"""A layer with an indexer, and a layer that reads the choice of the one before."""
LETTERS = {"F": FULL, "S": SHARED}
KIND = "shared_indexer"


class GlmMoeDsa(DeepSeekV32):
    model_type = "glm_moe_dsa"
    architecture = "GlmMoeDsaForCausalLM"
    absent: ClassVar[dict[str, Any]] = DeepSeekV32.absent | {"index_n_heads": 32}
    absent |= {"q_lora_rank": 2048, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5}

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        keys.only("indexer_rope_interleave", True, why="no model of the family is without")
        keys.inert("index_share_for_mtp_iteration", "moe_router_dtype")
        options["mixer"]["indexer_rope_interleave"] = True
        types = indexer_types(keys, options["n_layers"] or 0)
        if SHARED not in types:
            return options
        by_kind = {KIND: {"mixer": options["mixer"] | {"indexer_shared": True}}}
        names = [FULL if indexer == FULL else KIND for indexer in types]
        return options | patterns.layer_options(names, by_kind, plain=FULL)

    def content(self, section: Decoder) -> dict[str, Any]:
        config, mixer = super().content(section), section.mixer
        assert isinstance(mixer, MLA)
        if not mixer.indexer_rope_interleave:
            raise ValueError("model.mixer.indexer_rope_interleave=false")
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        types = [SHARED if layer.mixer.reads_choice else FULL for layer in layers]
        return config | {"indexer_types": types}


def indexer_types(keys: Keys, count: int) -> list[str]:
    """Read which layers have an indexer: by a list, by letters, or by how often they come."""
    often = max(keys.number("index_topk_freq", default=1) or 1, 1)
    offset = keys.number("index_skip_topk_offset", default=2)
    usual = [FULL if max(n - offset + 1, 0) % often == 0 else SHARED for n in range(count)]
    pattern = keys.take("index_topk_pattern", default=None) or usual
    types = list(keys.take("indexer_types", default=None) or pattern)
    types = [LETTERS.get(indexer, indexer) for indexer in types]
    if len(types) != count:
        keys.faults.append(f"indexer_types has {len(types)} entries for {count} layers")
    elif unknown := [indexer for indexer in types if indexer not in (FULL, SHARED)]:
        keys.faults.append(f"indexer_types has {unknown[0]!r}")
    elif types[:1] == [SHARED]:
        keys.faults.append("indexer_types: the first layer shares an indexer, and none is before")
    return types
