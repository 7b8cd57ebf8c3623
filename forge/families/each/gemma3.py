"""Gemma 3, its text: norms of queries and keys, and five windows to a full layer.

Full layers have another rotation.
"""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import QK_NORM
from forge.families.each.gemma2 import Gemma2
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING

THETAS = {FULL: 1_000_000.0, SLIDING: 10_000.0}


class Gemma3(Gemma2):
    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    block = Gemma2.block | QK_NORM
    caps = (0.0, 0.0)
    turns_by_kind = True

    def options(self, keys: Keys) -> dict[str, Any]:
        gemma_options = self.common_of_2(keys) | {"qk_norm": True}
        if cap := gemma_options["attn_logits_soft_cap"]:
            keys.faults.append(f"attn_logit_softcapping={cap}: transformers' Gemma 3 ignores it")
        count = gemma_options["n_layers"] or 0
        every = keys.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
        usual = [SLIDING if (layer + 1) % every else FULL for layer in range(count)]
        types = patterns.read_types(keys, gemma_options["n_layers"], usual)
        by_kind = {kind: self.rotation(keys, kind, gemma_options["max_seq_len"]) for kind in THETAS}
        by_kind[SLIDING]["sliding_window_size"] = keys.number("sliding_window", default=4096)
        return gemma_options | patterns.layer_options(types, by_kind)

    def rotation(self, keys: Keys, kind: str, longest: int | None) -> dict[str, Any]:
        """Return the rotation of a kind of layers.

        Newer files have a rotation by kind. Older files have one rotation for all layers, but for
        the layers with windows: rope_local_base_freq, not stretched.
        """
        stated = keys.take("rope_parameters", default=None) or {}
        local = keys.number("rope_local_base_freq", default=THETAS[SLIDING])
        of_all = keys.number("rope_theta", default=THETAS[FULL])
        theta = local if kind == SLIDING else of_all
        stretched = keys.take("rope_scaling", default=None) or {}
        by_kind = stated.get(kind) if FULL in stated or SLIDING in stated else None
        if by_kind is None:
            by_kind = {} if kind == SLIDING else stretched
        return rope.of_parameters(keys, by_kind, theta=theta, longest=longest)

    def content(self, section: Decoder) -> dict[str, Any]:
        config, types = self.write_common(section), patterns.attention_types(section)
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        of_kind = {kind: layers[types.index(kind)] for kind in THETAS if kind in types}
        sliding, full = of_kind.get(SLIDING), of_kind.get(FULL)
        if sliding is not None:
            config["rope_local_base_freq"] = sliding.rope_theta
        config |= rope.write_rope(full) if full is not None else {"rope_theta": THETAS[FULL]}
        return config | {"layer_types": types}
