"""EXAONE 4: norms of what layers give, three rotated windows to a full layer without rotation."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import (
    ATTENTION,
    MLP,
    OUTSIDE,
    QK_NORM,
    activation,
    sizes,
    write_sizes,
)
from forge.families.each.olmo2 import NORMS
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import FULL, SLIDING

UNROTATED = {"position": "none", "sliding_window_size": 0}


class Exaone4(Family):
    model_type = "exaone4"
    architecture = "Exaone4ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 32, "sliding_window": 4096}
    outside = OUTSIDE
    block = ATTENTION | QK_NORM | MLP | NORMS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1e-5) | activation(keys, default="silu") | rope.read_rope(keys)
        options |= {"norm_placement": "post", "qk_norm": True}
        count, window = options["n_layers"] or 0, keys.number("sliding_window", default=None)
        every = keys.take("sliding_window_pattern", default=4)
        if isinstance(every, str):  # LLLG, read by no class beside layer_types
            every = len(every)
        windowed = [window is not None and (layer + 1) % every for layer in range(count)]
        usual = [SLIDING if windows else FULL for windows in windowed]
        types = patterns.read_types(keys, options["n_layers"], usual)
        if window is None:
            if SLIDING in types:
                keys.faults.append("layer_types has windows, and sliding_window is null")
            return options
        by_kind = {SLIDING: {"sliding_window_size": window}, FULL: UNROTATED}
        return options | patterns.layer_options(types, by_kind, plain=SLIDING)

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        turning = [layer for layer in layers if layer.position == "rope"]
        config = write_sizes(section) | rope.write_rope((turning or layers)[0])
        config["layer_types"] = patterns.attention_types(section)
        window = patterns.window_of(section)
        full = layers[0].position != "rope" and window is None
        return config | {"sliding_window": section.max_seq_len if full else window}
