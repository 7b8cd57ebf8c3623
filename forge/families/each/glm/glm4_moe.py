"""GLM-4.5 to 4.7: half of a head rotated, and the experts of DeepSeek 3."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.families import rope
from forge.families.common import (
    ATTENTION,
    MLP,
    NORMS,
    OUTSIDE,
    QK_NORM,
    activation,
    sizes,
    write_sizes,
)
from forge.families.each.deepseek_v3 import EXPERTS, FURTHER, SHARED, beyond_last, further_layers
from forge.families.each.dots1 import BIAS, routing, write_routing
from forge.families.family import Family
from forge.families.keys import Keys


class Glm4Moe(Family):
    model_type = "glm4_moe"
    architecture = "Glm4MoeForCausalLM"
    partial_rotary = True
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, "partial_rotary_factor": 0.5}
    absent |= {"n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1}
    absent |= {"moe_intermediate_size": 1408, "first_k_dense_replace": 1}
    outside = OUTSIDE
    further = FURTHER
    block = ATTENTION | QK_NORM | MLP | NORMS | SHARED | EXPERTS | BIAS

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, eps=1e-5) | activation(keys, default="silu") | rope.read_rope(keys)
        options["mtp_num_layers"] = further_layers(keys)
        biases = bool(keys.take("attention_bias", default=False))
        options |= {f"{letter}_bias": biases for letter in "qkv"}
        options["qk_norm"] = bool(keys.take("use_qk_norm", default=False))
        return options | {"moe": routing(keys, normed=True)}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = write_sizes(section) | rope.write_rope(section) | write_routing(section)
        config["partial_rotary_factor"] = section.partial_rotary_factor
        config |= {
            "use_qk_norm": section.qk_norm,
            "num_nextn_predict_layers": section.mtp_num_layers,
        }
        return config | {"attention_bias": section.attention_biases["q"]}

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also copies in the layers that predict further tokens, and left-out layers."""
        return beyond_last(name, section) or super().ignored(name, section)
