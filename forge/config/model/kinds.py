"""Kinds of layers: their overrides, and faults in their description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forge.config.bounds import check_bounds
from forge.config.model.layer import LayerShape
from forge.config.problems import Problem

DEFAULT = "default"
"""The kind of layer without overrides."""
OF_ALL_LAYERS = (
    *("_target_", "vocab_size", "pad_vocab_to", "max_seq_len", "dim", "n_layers", "moe"),
    *(
        "tie_embeddings",
        "embedding_multiplier",
        "init_std",
        "init_std_tables",
        "init_scale_residual",
    ),
    *("layers", "kinds", "document_attention", "logits_multiplier", "final_logits_soft_cap"),
    *("new_rows", "logits_dot_in_fp32", "window_pattern", "short_window", "value_embeddings"),
    *("residual_scalars", "x0_scalars", "smear", "backout", "initial_law", "embedding_norm"),
    *("mtp_num_layers", "mhc_expansion_rate", "sinkhorn_iterations"),
    *("layer_scalar", "per_layer_input_width"),
    *("engram_layers", "engram_vocab_bases", "engram_max_ngram_size", "engram_num_heads"),
    *("engram_head_dim", "engram_kernel_size", "engram_seed"),
)
"""Options of the model shared by all kinds of layers."""


class Kind(NamedTuple):
    """A kind of layer: its name, and whether its layers have experts."""

    name: str
    moe: bool


def kind_faults(model: LayerShape, prefix: str) -> Iterator[Problem]:
    """Yield missing kinds named by layers, and values invalid for a kind."""
    for name, entry in model.kinds.items():
        key = f"{prefix}kinds.{name}"
        if not isinstance(entry, dict):
            yield Problem(f"{key}={entry}", f"{key} is a dict of options.", rule="type")
            continue
        try:
            layer = model.of_kind(name)
        except (ValueError, AttributeError) as error:
            hint = "a kind has options of model that are of one layer"
            yield Problem(key, f"{error}.".replace("?.", "?"), hint, rule="type")
            continue
        mine = tuple(f"{key}.{option}" for option in entry)
        faults = check_bounds(layer, f"{key}.")
        yield from (problem for problem in faults if problem.option.startswith(mine))
        if (position := entry.get("position")) in ("learned", "sinusoidal"):
            message = f"{position} positions are added once, before the first layer."
            yield Problem(f"{key}.position={position}", message, "rope or none", rule="type")
    kind_names = [DEFAULT, *model.kinds]
    for name in dict.fromkeys(model.layers):
        if name not in kind_names:
            message = f"there is no kind of layer '{name}': there are {', '.join(kind_names)}."
            hint = f"+{prefix}kinds.{name}={{...}}"
            yield Problem(f"{prefix}layers", message, hint, rule="type")
