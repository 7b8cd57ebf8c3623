"""Nemotron-H and Nemotron 3: blocks of one branch, which is a Mamba-2 layer, attention without
positions, a feed-forward layer or experts.
"""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.mamba2 import Mamba2
from forge.families import patterns
from forge.families.common import ACTIVATIONS, SIZES, activation_name, experts
from forge.families.each.hybrid.mamba import mamba_table, mixers_of
from forge.families.family import SELECTION_BIAS, Family
from forge.families.keys import Keys
from forge.families.patterns import FULL, LINEAR
from forge.families.table import Table

DENSE, EXPERTS = "mlp", "moe"
LETTERS = {"M": LINEAR, "*": FULL, "-": DENSE, "E": EXPERTS}
FORMER = {"mamba": LINEAR, "attention": FULL}
TYPES, PATTERN, EPS, SHARED = (
    *("layers_block_type", "hybrid_override_pattern", "layer_norm_epsilon"),
    "moe_shared_expert_intermediate_size",
)
OF_MAMBA = {
    "ssm_num_heads": "mamba_num_heads",
    "ssm_head_dim": "mamba_head_dim",
    "ssm_state_size": "ssm_state_size",
    "ssm_n_groups": "n_groups",
    "ssm_conv_kernel_dim": "conv_kernel",
    "ssm_conv_bias": "use_conv_bias",
    "ssm_proj_bias": "use_bias",
    "ssm_chunk_size": "chunk_size",
    "ssm_time_step_min": "time_step_min",
}
"""transformers bounds steps by time_step_min, and reads time_step_limit nowhere."""
OF_ROUTING = {
    "num_experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "ffn_hidden_dim": "moe_intermediate_size",
    "shared_hidden_dim": SHARED,
    "routed_scaling_factor": "routed_scaling_factor",
    "n_routing_groups": "n_group",
    "topk_routing_group": "topk_group",
    "norm_topk_prob": "norm_topk_prob",
}
NONE = {"schema": "none"}
PROJECTIONS = {"w_up": "up_proj", "w_down": "down_proj"}


class NemotronH(Family):
    model_type = "nemotron_h"
    architecture = "NemotronHForCausalLM"
    prefix = "backbone."
    absent: ClassVar[dict[str, Any]] = {
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "chunk_size": 128,
        "time_step_min": 0.001,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        SHARED: 7688,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "num_key_value_heads": 8,
        "head_dim": 128,
        EPS: 1e-5,
    }
    outside: ClassVar[Table] = {
        "embedding.weight": "embeddings.weight",
        "norm.weight": "norm_f.weight",
        "output.weight": "lm_head.weight",
    }
    block: ClassVar[Table] = {
        f"attention.w{letter}.weight": f"mixer.{letter}_proj.weight" for letter in "qkvo"
    }
    block |= {f"{part}_norm.weight": "norm.weight" for part in ("attention", "feed_forward")}
    block |= experts("mixer.experts", PROJECTIONS, "mixer.gate.weight")
    block |= {SELECTION_BIAS: "mixer.gate.e_score_correction_bias"}
    block |= {
        f"feed_forward.{inside}{name}.{kind}": f"mixer.{theirs}{hf_name}.{kind}"
        for inside, theirs in (("", ""), ("shared.", "shared_experts."))
        for name, hf_name in PROJECTIONS.items()
        for kind in ("weight", "bias")
    }

    def options(self, keys: Keys) -> dict[str, Any]:
        types = self.types(keys)
        options = {name: keys.number(key) for name, key in SIZES.items() if name != "n_layers"}
        options |= {"n_layers": len(types), "norm_eps": keys.number(EPS), "position": "none"}
        options |= {"n_kv_heads": keys.number("num_key_value_heads")}
        options |= {"head_dim": keys.number("head_dim"), "gated_mlp": False}
        options["activation"] = keys.choice("mlp_hidden_act", ACTIVATIONS, "relu2")
        options["init_std"] = keys.number("initializer_range", default=0.02)
        options["tie_embeddings"] = keys.take("tie_word_embeddings", default=False)
        options["mlp_bias"] = bool(keys.take("mlp_bias", default=False))
        self.without_effect(keys)
        mixer: dict[str, Any] = {"schema": "mamba2"}
        mixer |= {name: keys.take(key) for name, key in OF_MAMBA.items()}
        moe = {name: keys.take(key) for name, key in OF_ROUTING.items()}
        if EXPERTS in types:
            if options["mlp_bias"]:
                keys.faults.append("mlp_bias=True: forge has no biases of shared experts alone")
            options["moe"] = moe | {"router": "sigmoid_topk", "shared_experts": 1}
        by_type: dict[str, dict[str, Any]] = {
            LINEAR: {"mixer": mixer, "feed_forward": NONE},
            FULL: {"mixer": {"schema": "attention"}, "feed_forward": NONE},
            DENSE: {"mixer": NONE},
            EXPERTS: {"mixer": NONE},
        }
        plain = EXPERTS if EXPERTS in types else DENSE
        return options | patterns.layer_options(types, by_type, plain=plain)

    def types(self, keys: Keys) -> list[str]:
        """Return the types of the layers, stated by name or by letter."""
        pattern = keys.take(PATTERN, default="")
        stated = keys.take(TYPES, "layer_types", default=[LETTERS[letter] for letter in pattern])
        types = [FORMER.get(str(name), str(name)) for name in stated]
        count = keys.number("num_hidden_layers", default=len(types))
        if count != len(types):
            keys.faults.append(f"{TYPES} has {len(types)} entries for {count} layers")
        if unknown := sorted({*types} - {*LETTERS.values()}):
            keys.faults.append(f"{TYPES} has {unknown[0]!r}")
        if {DENSE, EXPERTS} <= {*types}:
            keys.faults.append(f"{TYPES} has both 'mlp' and 'moe': forge has one of them")
        if not {DENSE, EXPERTS} & {*types} or not {LINEAR, FULL} & {*types}:
            keys.faults.append(f"{TYPES} has no feed-forward layer, or no mixer")
        return types

    def without_effect(self, keys: Keys) -> None:
        """Refuse keys with values that forge has no layer for, and mark those without effect."""
        keys.only("attention_bias", False, why="transformers has no such biases here")
        keys.only("sliding_window", None, why="transformers reads it nowhere here")
        keys.only("moe_latent_size", None, why="forge has no experts of latents")
        keys.only("mamba_hidden_act", "silu", why="forge has no other in Mamba-2 layers")
        keys.inert("expand", "time_step_limit", "time_step_max", "time_step_floor")
        keys.inert("use_mamba_kernels", "mamba_ssm_cache_dtype", "mamba_proj_bias")
        keys.inert(
            "rescale_prenorm_residual",
            "residual_in_fp32",
            "num_logits_to_keep",
            "moe_shared_expert_overlap",
        )
        keys.inert("n_shared_experts", "num_nextn_predict_layers", "mtp_layers_block_type")
        keys.inert("mtp_hybrid_override_pattern", "rope_theta", "partial_rotary_factor")

    def content(self, section: Decoder) -> dict[str, Any]:
        mixer, moe = mixers_of(section)[0], section.moe
        if mixer.ssm_time_step_max is not None:
            raise ValueError(f"model.mixer.ssm_time_step_max={mixer.ssm_time_step_max}")
        if section.tie_embeddings:  # transformers' class has a head of its own, whatever is stated
            raise ValueError("model.tie_embeddings=true")
        config = {key: getattr(section, name) for name, key in SIZES.items()}
        config |= {key: getattr(mixer, name) for name, key in OF_MAMBA.items()}
        config["intermediate_size"] = section.computed_ffn_hidden_dim
        config |= {"num_key_value_heads": section.n_kv_heads, EPS: section.norm_eps}
        config |= {"head_dim": section.computed_head_dim, "mlp_bias": section.has_mlp_bias}
        config |= {"initializer_range": section.init_std, "expand": 2}
        config |= {"tie_word_embeddings": False, "num_nextn_predict_layers": 0}
        config["mlp_hidden_act"] = activation_name(section)
        if section.is_moe:
            config |= {key: getattr(moe, name) for name, key in OF_ROUTING.items()}
            config |= {"moe_intermediate_size": section.expert_hidden_dim}
            config[SHARED] = moe.shared_width(section)
        return config | {TYPES: [self.written_type(section, n) for n in range(section.n_layers)]}

    def written_type(self, section: Decoder, number: int) -> str:
        """Return the type of a layer. Raises ValueError for a layer with two branches."""
        kind = section.kind_of(number)
        layer = section.of_kind(kind.name)
        if layer.mixer.absent:
            return EXPERTS if kind.moe else DENSE
        if not layer.feed_forward.absent:
            raise ValueError("model.layers with a mixer and a feed-forward layer in one block")
        return LINEAR if isinstance(layer.mixer, Mamba2) else FULL

    def table(self, layer: Decoder) -> Table:
        mixer = layer.mixer
        return self.block | (mamba_table(mixer, "mixer.") if isinstance(mixer, Mamba2) else {})

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also the layers trained to predict further tokens."""
        return name.startswith(("mtp.", "backbone.mtp.")) or super().ignored(name, section)
