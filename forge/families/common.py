"""What most families share: the keys of Llama's config.json, and its names."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.keys import NEEDED, Keys
from forge.families.table import Table, Theirs

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
"""Theirs and ours; the first of theirs is written for ours."""
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
    f"attention.w{each}.{kind}": f"self_attn.{each}_proj.{kind}"
    for each in "qkvo"
    for kind in ("weight", "bias")
}
QK_NORM: Table = {f"attention.{each}_norm.weight": f"self_attn.{each}_norm.weight" for each in "qk"}
NORMS: Table = {
    "attention_norm.weight": "input_layernorm.weight",
    "feed_forward_norm.weight": "post_attention_layernorm.weight",
}
PROJECTIONS = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}
MLP: Table = {
    f"feed_forward.{ours}.{kind}": f"mlp.{theirs}.{kind}"
    for ours, theirs in PROJECTIONS.items()
    for kind in ("weight", "bias")
}


def experts(place: str, names: dict[str, str], router: str) -> Table:
    """One tensor an expert, at `place`; router: the place of its weight."""
    found: dict[str, Theirs | str] = {"feed_forward.router.weight": router}
    for ours, theirs in names.items():
        found[f"feed_forward.experts.{ours}"] = Theirs(name=f"{place}.{{}}.{theirs}.weight")
    return found


def sizes(keys: Keys, *, tied: bool = False, eps: float = 1e-6) -> dict[str, Any]:
    """The options that all of them have."""
    found = {ours: keys.number(theirs) for ours, theirs in SIZES.items()}
    found["n_kv_heads"] = keys.number("num_key_value_heads", default=found["n_heads"])
    found["head_dim"] = keys.number("head_dim", default=None)
    found["norm_eps"] = keys.number("rms_norm_eps", default=eps)
    found["init_std"] = keys.number("initializer_range", default=0.02)
    found["tie_embeddings"] = keys.take("tie_word_embeddings", default=tied)
    return found


def activation(keys: Keys, name: str = "hidden_act", default: Any = NEEDED) -> dict[str, Any]:
    """A gated feed-forward layer."""
    return {"activation": keys.choice(name, ACTIVATIONS, default), "gated_mlp": True}


def write_sizes(section: Decoder) -> dict[str, Any]:
    """What `sizes` reads."""
    found = {theirs: getattr(section, ours) for ours, theirs in SIZES.items()}
    found["intermediate_size"] = section.computed_ffn_hidden_dim
    found["num_key_value_heads"] = section.kv_heads
    found["head_dim"] = section.computed_head_dim
    found["rms_norm_eps"] = section.norm_eps
    found["initializer_range"] = section.init_std
    found["tie_word_embeddings"] = section.tie_embeddings
    found["hidden_act"] = activation_name(section)
    return found


def activation_name(section: Decoder) -> str:
    """What they call the activation. Raises ValueError for one that they lack."""
    for theirs, ours in ACTIVATIONS.items():
        if ours == section.activation:
            return theirs
    raise ValueError(f"model.activation={section.activation}")
