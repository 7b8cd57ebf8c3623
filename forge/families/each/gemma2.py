"""Gemma 2: norms on both sides, soft caps, a window in every second layer."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import ATTENTION, MLP
from forge.families.each.gemma import Gemma
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING
from forge.families.table import Table

NORMS: Table = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "feed_forward_norm.weight": "pre_feedforward_layernorm.weight",
    "feed_forward_post_norm.weight": "post_feedforward_layernorm.weight",
}


class Gemma2(Gemma):
    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    block = ATTENTION | MLP | NORMS
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4}
    caps = (50.0, 30.0)
    """Soft caps of attention and of logits for a config.json without the keys."""

    def options(self, keys: Keys) -> dict[str, Any]:
        options = self.common_of_2(keys)
        count = options["n_layers"] or 0
        usual = [FULL if layer % 2 else SLIDING for layer in range(count)]
        types = patterns.read_types(keys, options["n_layers"], usual)
        window = keys.number("sliding_window", default=4096)
        by_kind = {SLIDING: {"sliding_window_size": window}}
        return options | rope.read_rope(keys) | patterns.layer_options(types, by_kind)

    def common_of_2(self, keys: Keys) -> dict[str, Any]:
        """Return the options of Gemma 2 and 3."""
        keys.inert("hidden_act")
        options = self.common(keys, "hidden_activation") | {"norm_placement": "both"}
        options["query_scale"] = keys.number("query_pre_attn_scalar", default=256) ** -0.5
        names = "attn_logit_softcapping", "final_logit_softcapping"
        attention, logits = (
            (keys.number(name, default=0.0) if keys.has(name) else cap)
            for name, cap in zip(names, self.caps, strict=True)
        )
        keys.inert(*names, "cache_implementation")
        for name in names:
            if keys.number(name, default=None) == 0:
                keys.faults.append(f"{name}=0: transformers divides by it; say null for none")
        return options | {"attn_logits_soft_cap": attention, "final_logits_soft_cap": logits}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = self.write_common(section) | rope.write_rope(section)
        return config | {"layer_types": patterns.attention_types(section)}

    def write_common(self, section: Decoder) -> dict[str, Any]:
        config = super().write_common(section)
        config["hidden_activation"] = config.pop("hidden_act")
        scale = section.query_scale or section.computed_head_dim**-0.5
        scalar = scale**-2
        config["query_pre_attn_scalar"] = (
            round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar
        )
        config["attn_logit_softcapping"] = section.attn_logits_soft_cap or None
        config["final_logit_softcapping"] = section.final_logits_soft_cap or None
        return config | {"sliding_window": patterns.window_of(section) or 4096}
