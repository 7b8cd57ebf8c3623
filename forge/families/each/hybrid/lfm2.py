"""LFM2: gated short convolutions and, in some layers, attention with norms of each head."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.config.model.decoder import Decoder
from forge.config.model.mixers.short_conv import ShortConv
from forge.families import patterns, rope
from forge.families.common import ATTENTION, sizes, write_sizes
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.patterns import FULL
from forge.families.table import FolderTensor, Table, part

CONV = "conv"
WIDTH, EPS = "intermediate_size", "norm_eps"
PARTS = {"wb": 0, "wc": 1, "wx": 2}
OF_CONV: Table = {
    "attention.conv": FolderTensor(name="conv.conv.weight", singleton=1),
    "attention.conv_bias": "conv.conv.bias",
    "attention.wo.weight": "conv.out_proj.weight",
    "attention.wo.bias": "conv.out_proj.bias",
}
for kind in ("weight", "bias"):
    for name, number in PARTS.items():
        stored = FolderTensor(name=f"conv.in_proj.{kind}", rows=part(number))
        OF_CONV[f"attention.{name}.{kind}"] = stored


def computed_width(keys: Keys, width: int | None) -> int | None:
    """Return the width of a feed-forward layer: as stated, or two thirds of it, rounded up."""
    multiplier = keys.number("block_ffn_dim_multiplier", default=1.0)
    multiple = keys.number("block_multiple_of", default=256)
    if not keys.take("block_auto_adjust_ff_dim", default=True) or width is None:
        return width
    width = int(multiplier * int(2 * width / 3))
    return -(-width // multiple) * multiple


class Lfm2(Family):
    model_type = "lfm2"
    architecture = "Lfm2ForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"num_key_value_heads": 8, EPS: 1e-5}
    outside: ClassVar[Table] = {
        "embedding.weight": "embed_tokens.weight",
        "norm.weight": "embedding_norm.weight",
        "output.weight": "lm_head.weight",
    }
    block: ClassVar[Table] = {
        "attention_norm.weight": "operator_norm.weight",
        "feed_forward_norm.weight": "ffn_norm.weight",
        "feed_forward.w_gate.weight": "feed_forward.w1.weight",
        "feed_forward.w_up.weight": "feed_forward.w3.weight",
        "feed_forward.w_down.weight": "feed_forward.w2.weight",
    }
    attention: ClassVar[Table] = ATTENTION | {
        "attention.wo.weight": "self_attn.out_proj.weight",
        "attention.q_norm.weight": "self_attn.q_layernorm.weight",
        "attention.k_norm.weight": "self_attn.k_layernorm.weight",
    }

    def options(self, keys: Keys) -> dict[str, Any]:
        options = sizes(keys, tied=True) | {"activation": "silu", "gated_mlp": True}
        options["tie_embeddings"] = keys.take("tie_embedding", "tie_word_embeddings", default=True)
        options["norm_eps"] = keys.number(EPS, default=1e-5)
        width = keys.number("block_ff_dim", WIDTH)
        options["ffn_hidden_dim"] = computed_width(keys, width)
        options |= rope.read_rope(keys, theta=1e6) | {"qk_norm": True}
        count = options["n_layers"] or 0
        full = keys.take("full_attn_idxs", default=range(count))
        usual = [FULL if layer in full else CONV for layer in range(count)]
        types = patterns.read_types(keys, count, usual)
        mixer = {"schema": "short_conv", "conv_bias": keys.flag("conv_bias", False)}
        mixer["conv_kernel_dim"] = keys.number("conv_L_cache", default=3)
        return options | patterns.layer_options(types, {CONV: {"mixer": mixer}})

    def content(self, section: Decoder) -> dict[str, Any]:
        layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
        mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, ShortConv)]
        if not mixers:
            raise ValueError("model.layers without a short convolution")
        config = write_sizes(section) | rope.write_rope(section)
        if config.pop("hidden_act") != "silu":
            raise ValueError(f"model.activation={section.activation}")
        config[EPS] = config.pop("rms_norm_eps")
        config |= {"block_auto_adjust_ff_dim": False, "conv_bias": mixers[0].conv_bias}
        config["conv_L_cache"] = mixers[0].conv_kernel_dim
        types = [CONV if isinstance(layer.mixer, ShortConv) else FULL for layer in layers]
        return config | {"layer_types": types}

    def table(self, layer: Decoder) -> Table:
        of_mixer = OF_CONV if isinstance(layer.mixer, ShortConv) else self.attention
        return self.block | of_mixer
