"""OLMo 3: OLMo 2 with three windows to a full layer, of which the full ones alone are stretched."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.each.olmo2 import Olmo2
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING

THETA = 500_000.0


class Olmo3(Olmo2):
    model_type = "olmo3"
    architecture = "Olmo3ForCausalLM"
    turns_by_kind = True

    def options(self, keys: Keys) -> dict[str, Any]:
        found = self.common(keys)
        count = found["n_layers"] or 0
        usual = [SLIDING if (layer + 1) % 4 else FULL for layer in range(count)]
        types = patterns.read_types(keys, found["n_layers"], usual)
        own = {kind: self.rotation(keys, kind, found["max_seq_len"]) for kind in (FULL, SLIDING)}
        own[SLIDING]["sliding_window_size"] = keys.number("sliding_window", default=4096)
        return found | patterns.options(types, own)

    def rotation(self, keys: Keys, kind: str, longest: int | None) -> dict[str, Any]:
        """By kind in newer files; in older ones rope_scaling is of the full layers alone, and so is
        rope_theta to transformers, which has 500,000 for the others.
        """
        stated = keys.take("rope_parameters", default=None) or {}
        scaling = keys.take("rope_scaling", default=None) or {}
        theta = keys.number("rope_theta", default=THETA)
        if stated and not (FULL in stated or SLIDING in stated):
            if kind == FULL:
                keys.faults.append(f"rope_parameters without {FULL}: transformers ignores them")
            return {}
        own = stated.get(kind) or (scaling if kind == FULL else {})
        if kind == SLIDING:
            if theta != THETA and "rope_theta" not in own:
                keys.faults.append(
                    f"rope_theta={theta}: transformers turns the layers with windows by {THETA:.0f}"
                )
            theta = THETA
        return rope.of_parameters(keys, own, theta=theta, longest=longest)

    def content(self, section: Decoder) -> dict[str, Any]:
        found, types = self.write_common(section), patterns.types_of(section)
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        of_kind = {kind: layers[types.index(kind)] for kind in (FULL, SLIDING) if kind in types}
        found["rope_parameters"] = {kind: rope.parameters(one) for kind, one in of_kind.items()}
        window = patterns.window_of(section) or 4096
        return found | {"layer_types": types, "sliding_window": window}
