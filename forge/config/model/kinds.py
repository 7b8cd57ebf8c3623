"""Kinds of layers: what tells them apart, and what is wrong with how they are described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from forge.config.bounds import check_bounds
from forge.config.model.layer import LayerShape
from forge.config.problems import Problem

DEFAULT = "default"
"""The kind of layer that overrides nothing."""
OF_ALL_LAYERS = (
    *("_target_", "vocab_size", "pad_vocab_to", "max_seq_len", "dim", "n_layers", "moe"),
    *("tie_embeddings", "embedding_multiplier", "init_std", "init_scale_residual"),
    *("layers", "kinds", "document_attention", "logits_multiplier", "final_logits_soft_cap"),
    "new_rows",
)
"""Options of the model that no kind of layer overrides."""


class Kind(NamedTuple):
    """What tells layers apart: the name of their kind, and whether they have experts."""

    name: str
    moe: bool


def kind_faults(model: LayerShape, prefix: str) -> Iterator[Problem]:
    """Kinds that layers name and that are not there, and values that a kind cannot have."""
    for name, entry in model.kinds.items():
        key = f"{prefix}kinds.{name}"
        if not isinstance(entry, dict):
            yield Problem(f"{key}={entry}", f"{key} is a dict of options.", rule="type")
            continue
        try:
            made = model.of_kind(name)
        except (ValueError, AttributeError) as error:
            fix = "a kind has options of model that are of one layer"
            yield Problem(key, f"{error}.".replace("?.", "?"), fix, rule="type")
            continue
        mine = tuple(f"{key}.{option}" for option in entry)
        found = check_bounds(made, f"{key}.")
        yield from (problem for problem in found if problem.option.startswith(mine))
        if (position := entry.get("position")) in ("learned", "sinusoidal"):
            what = f"{position} positions are added once, before the first layer."
            yield Problem(f"{key}.position={position}", what, "rope or none", rule="type")
    known = [DEFAULT, *model.kinds]
    for name in dict.fromkeys(model.layers):
        if name not in known:
            what = f"there is no kind of layer '{name}': there are {', '.join(known)}."
            fix = f"+{prefix}kinds.{name}={{...}}"
            yield Problem(f"{prefix}layers", what, fix, rule="type")
