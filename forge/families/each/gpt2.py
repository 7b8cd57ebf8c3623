"""GPT-2: learned positions, LayerNorm, biases everywhere, linear layers the other way round."""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.common import activation, activation_name
from forge.families.family import Family
from forge.families.keys import Keys
from forge.families.table import FolderTensor, Table, part

SIZES = {
    "vocab_size": "vocab_size",
    "max_seq_len": "n_positions",
    "dim": "n_embd",
    "n_layers": "n_layer",
    "n_heads": "n_head",
}
LINEAR = {
    "attention.wo": "attn.c_proj",
    "feed_forward.w_up": "mlp.c_fc",
    "feed_forward.w_down": "mlp.c_proj",
}
NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
OUTSIDE: Table = {
    "embedding.weight": "wte.weight",
    "positions.weight": "wpe.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
    "output.weight": "lm_head.weight",
}


def _block() -> Table:
    table: Table = {}
    for kind in ("weight", "bias"):
        for number, letter in enumerate("qkv"):
            stored = FolderTensor(name=f"attn.c_attn.{kind}", rows=part(number), transposed=True)
            table[f"attention.w{letter}.{kind}"] = stored
        for ours, name in LINEAR.items():
            table[f"{ours}.{kind}"] = FolderTensor(name=f"{name}.{kind}", transposed=True)
        for ours, name in NORMS.items():
            table[f"{ours}.{kind}"] = f"{name}.{kind}"
    return table


class GPT2(Family):
    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    prefix = "transformer."
    layers = "h."
    outside = OUTSIDE
    block = _block()

    def options(self, keys: Keys) -> dict[str, Any]:
        options = {option: keys.number(key) for option, key in SIZES.items()}
        width = keys.number("n_inner", default=4 * (options["dim"] or 0))
        keys.only("scale_attn_weights", True, why="forge divides scores by the root of a head")
        keys.only("scale_attn_by_inverse_layer_idx", False, why="forge has no such scale")
        keys.inert("reorder_and_upcast_attn", "n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop")
        summaries = ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")
        keys.inert(*(f"summary_{summary}" for summary in summaries))
        options |= activation(keys, "activation_function", "gelu_new") | {"gated_mlp": False}
        options["tie_embeddings"] = keys.take("tie_word_embeddings", default=True)
        options["norm_eps"] = keys.number("layer_norm_epsilon", default=1e-5)
        options["init_std"] = keys.number("initializer_range", default=0.02)
        options |= {"norm_type": "layernorm", "bias": True, "position": "learned"}
        return options | {"ffn_hidden_dim": width, "n_kv_heads": options["n_heads"]}

    def content(self, section: Decoder) -> dict[str, Any]:
        config = {key: getattr(section, option) for option, key in SIZES.items()}
        config["n_inner"] = section.computed_ffn_hidden_dim
        hf_name = "gelu_new" if section.activation == "gelu_tanh" else activation_name(section)
        config["activation_function"] = hf_name
        config["layer_norm_epsilon"] = section.norm_eps
        config["initializer_range"] = section.init_std
        return config | {"tie_word_embeddings": section.tie_embeddings}

    def ignored(self, name: str, section: Decoder) -> bool:
        """Ignore also the masks stored in older files."""
        return name.endswith((".attn.bias", ".attn.masked_bias")) or super().ignored(name, section)
