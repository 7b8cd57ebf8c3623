"""Gemma 3, its text: norms of queries and keys, five windows to a full layer, which rotates
otherwise.
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
        found = self.common_of_2(keys) | {"qk_norm": True}
        if cap := found["attn_logits_soft_cap"]:
            keys.faults.append(f"attn_logit_softcapping={cap}: transformers' Gemma 3 ignores it")
        count = found["n_layers"] or 0
        every = keys.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
        usual = [SLIDING if (layer + 1) % every else FULL for layer in range(count)]
        types = patterns.read_types(keys, found["n_layers"], usual)
        own = {kind: self.rotation(keys, kind, found["max_seq_len"]) for kind in THETAS}
        own[SLIDING]["sliding_window_size"] = keys.number("sliding_window", default=4096)
        return found | patterns.options(types, own)

    def rotation(self, keys: Keys, kind: str, longest: int | None) -> dict[str, Any]:
        """Of the layers of a kind: by kind in newer files, for all layers in older ones, where the
        windows have theirs in rope_local_base_freq and are not stretched.
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
        found, types = self.write_common(section), patterns.types_of(section)
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        of_kind = {kind: layers[types.index(kind)] for kind in THETAS if kind in types}
        local, whole = of_kind.get(SLIDING), of_kind.get(FULL)
        if local is not None:
            found["rope_local_base_freq"] = local.rope_theta
        found |= rope.write(whole) if whole is not None else {"rope_theta": THETAS[FULL]}
        return found | {"layer_types": types}
