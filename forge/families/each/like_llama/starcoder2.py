"""StarCoder 2: LayerNorm, biases and no gate, with rotation and a window."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import patterns, rope
from forge.families.common import ATTENTION, NORMS, OUTSIDE, activation, sizes, write_sizes
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.table import Table

MLP = {"w_up": "c_fc", "w_down": "c_proj"}
BIASES: Table = {
    name.replace("weight", "bias"): str(x).replace("weight", "bias") for name, x in NORMS.items()
}


class Starcoder2(Family):
    model_type = "starcoder2"
    architecture = "Starcoder2ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 2, "initializer_range": 0.018042}
    absent |= {"tie_word_embeddings": True}
    outside = OUTSIDE | {"norm.bias": "norm.bias"}
    block = ATTENTION | NORMS | BIASES
    block |= {
        f"feed_forward.{x}.{k}": f"mlp.{y}.{k}" for x, y in MLP.items() for k in ("weight", "bias")
    }

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys) | activation(keys, default="gelu_pytorch_tanh") | rope.read_rope(keys)
        keys.inert("rms_norm_eps", "norm_type")
        options["norm_eps"] = keys.number("norm_epsilon", default=1e-5)
        keys.only("use_bias", True, why="forge has LayerNorm with biases and linear layers alike")
        options |= {"gated_mlp": False, "norm_type": "layernorm", "bias": True}
        return options | {"sliding_window_size": keys.number("sliding_window", default=0)}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section)
        config["norm_epsilon"] = config.pop("rms_norm_eps")
        config["use_bias"] = section.bias
        return config | {"sliding_window": patterns.window_of(section)}
