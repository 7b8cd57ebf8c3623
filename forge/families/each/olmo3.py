"""OLMo 3: OLMo 2 with three windows to a full layer; only the full layers are stretched."""

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
        common = self.common(keys)
        count = common["n_layers"] or 0
        usual = [SLIDING if (layer + 1) % 4 else FULL for layer in range(count)]
        types = patterns.read_types(keys, common["n_layers"], usual)
        by_kind = {
            kind: self.rotation(keys, kind, common["max_seq_len"]) for kind in (FULL, SLIDING)
        }
        by_kind[SLIDING]["sliding_window_size"] = keys.number("sliding_window", default=4096)
        return common | patterns.layer_options(types, by_kind)

    def rotation(self, keys: Keys, kind: str, longest: int | None) -> dict[str, Any]:
        """Return the rotation of a kind of layers.

        Newer files have a rotation by kind. In older files rope_scaling applies to the full layers
        alone. transformers reads rope_theta for the full layers too, and has 500,000 for the
        others.
        """
        stated = keys.take("rope_parameters", default=None) or {}
        scaling = keys.take("rope_scaling", default=None) or {}
        theta = keys.number("rope_theta", default=THETA)
        if stated and not (FULL in stated or SLIDING in stated):
            if kind == FULL:
                keys.faults.append(f"rope_parameters without {FULL}: transformers ignores them")
            return {}
        of_kind = stated.get(kind) or (scaling if kind == FULL else {})
        if kind == SLIDING:
            if theta != THETA and "rope_theta" not in of_kind:
                keys.faults.append(
                    f"rope_theta={theta}: transformers turns the layers with windows by {THETA:.0f}"
                )
            theta = THETA
        return rope.of_parameters(keys, of_kind, theta=theta, longest=longest)

    def content(self, section: Decoder) -> dict[str, Any]:
        config, types = self.write_common(section), patterns.attention_types(section)
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        of_kind = {kind: layers[types.index(kind)] for kind in (FULL, SLIDING) if kind in types}
        config["rope_parameters"] = {
            kind: rope.rope_parameters(layer) for kind, layer in of_kind.items()
        }
        window = patterns.window_of(section) or 4096
        return config | {"layer_types": types, "sliding_window": window}
