"""The keys of Llama's config.json and the names of its tensors, shared by most families."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.keys import NEEDED, Keys
from forge.families.table import FolderTensor, Table, halves_of_pairs, part

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Hugging Face's names and forge's; for a name of forge the first match is written."""
SIZES = {
    "vocab_size": "vocab_size",
    "max_seq_len": "max_position_embeddings",
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "ffn_hidden_dim": "intermediate_size",
}
OUTSIDE: Table = {
    "embedding.weight": "embed_tokens.weight",
    "norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
ATTENTION: Table = {
    f"attention.w{letter}.{kind}": f"self_attn.{letter}_proj.{kind}"
    for letter in "qkvo"
    for kind in ("weight", "bias")
}
QK_NORM: Table = {f"attention.{x}_norm.weight": f"self_attn.{x}_norm.weight" for x in "qk"}
NORMS: Table = {
    "attention_norm.weight": "input_layernorm.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
}
PROJECTIONS = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}
MLP: Table = {
    f"feed_forward.{name}.{kind}": f"mlp.{hf_name}.{kind}"
    for name, hf_name in PROJECTIONS.items()
    for kind in ("weight", "bias")
}

FUSED_MLP: Table = {
    "feed_forward.w_gate.weight": FolderTensor(name="mlp.gate_up_proj.weight", rows=part(0)),
    "feed_forward.w_up.weight": FolderTensor(name="mlp.gate_up_proj.weight", rows=part(1)),
    "feed_forward.w_down.weight": "mlp.down_proj.weight",
}


def adjacent_pairs(layer: Decoder) -> Table:
    """Return the table of queries and keys of files that rotate adjacent pairs.

    forge rotates pairs half a rotation apart; with rope_interleave forge follows the files.
    """
    if not layer.is_rotary or layer.rope_interleave:
        return {}
    table: Table = {}
    for letter, heads in ("q", layer.n_heads), ("k", layer.kv_heads):
        rows = halves_of_pairs(heads, layer.rotary_dim, first=True)
        for kind in ("weight", "bias"):
            stored = FolderTensor(name=f"self_attn.{letter}_proj.{kind}", rows=rows)
            table[f"attention.w{letter}.{kind}"] = stored
    return table


def experts(place: str, names: dict[str, str], router: str) -> Table:
    """Return the table of an expert layer: a tensor per expert at `place`, the gate at `router`."""
    table: dict[str, FolderTensor | str] = {"feed_forward.router.weight": router}
    for name, hf_name in names.items():
        table[f"feed_forward.experts.{name}"] = FolderTensor(name=f"{place}.{{}}.{hf_name}.weight")
    return table


def sizes(keys: Keys, *, tied: bool = False, eps: float = 1e-6) -> dict[str, Any]:
    """Read the options common to all families of this kind."""
    options = {option: keys.number(key) for option, key in SIZES.items()}
    options["n_kv_heads"] = keys.number("num_key_value_heads", default=options["n_heads"])
    options["head_dim"] = keys.number("head_dim", default=None)
    options["norm_eps"] = keys.number("rms_norm_eps", default=eps)
    options["init_std"] = keys.number("initializer_range", default=0.02)
    options["tie_embeddings"] = keys.take("tie_word_embeddings", default=tied)
    return options


def activation(keys: Keys, name: str = "hidden_act", default: Any = NEEDED) -> dict[str, Any]:
    """Read the activation of a gated feed-forward layer."""
    return {"activation": keys.choice(name, ACTIVATIONS, default), "gated_mlp": True}


def write_sizes(section: Decoder) -> dict[str, Any]:
    """Return the keys of config.json read by `sizes`."""
    config = {key: getattr(section, option) for option, key in SIZES.items()}
    config["intermediate_size"] = section.computed_ffn_hidden_dim
    config["num_key_value_heads"] = section.kv_heads
    config["head_dim"] = section.computed_head_dim
    config["rms_norm_eps"] = section.norm_eps
    config["initializer_range"] = section.init_std
    config["tie_word_embeddings"] = section.tie_embeddings
    config["hidden_act"] = activation_name(section)
    return config


def activation_name(section: Decoder) -> str:
    """Return Hugging Face's name of the activation.

    Raises ValueError for an activation without a name.
    """
    for hf_name, activation in ACTIVATIONS.items():
        if activation == section.activation:
            return hf_name
    raise ValueError(f"model.activation={section.activation}")
