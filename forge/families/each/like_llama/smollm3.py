"""SmolLM 3: Llama without rotation in every fourth layer."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.each.llama import Llama
from forge.families.keys import Keys
from forge.families.patterns import FULL

UNROTATED = "no_rotation"


class SmolLM3(Llama):
    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 4, "tie_word_embeddings": True}
    theta = 2_000_000.0

    def options(self, keys: Keys) -> dict[str, Any]:
        options = super().options(keys)
        keys.only("use_sliding_window", False, why="no published model of the family has windows")
        keys.inert("sliding_window")
        count, every = options["n_layers"] or 0, keys.number("no_rope_layer_interval", default=4)
        usual = [int((layer + 1) % every != 0) for layer in range(count)]
        rotates = list(keys.take("no_rope_layers", default=usual))
        if len(rotates) < count:
            keys.faults.append(f"no_rope_layers has {len(rotates)} entries for {count} layers")
        types = [FULL if turned else UNROTATED for turned in rotates[:count]]
        return options | patterns.layer_options(types, {UNROTATED: {"position": "none"}})

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        turning = [layer for layer in layers if layer.position == "rope"]
        config = super().content(section) | rope.write_rope((turning or layers)[0])
        config["no_rope_layers"] = [int(layer.position == "rope") for layer in layers]
        config["pad_token_id"] = None  # of the class it is beyond a smaller vocabulary
        return config | {"layer_types": [FULL] * section.n_layers}
