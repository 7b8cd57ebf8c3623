"""Differences between layers by their depth: windows by a pattern, and tables of values.

A layer of a model with such options has a kind with a longer name: default/short, default/values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge.config.model.skips.value_embeddings import has_values
from forge.config.model.window_pattern import is_short, short_window

if TYPE_CHECKING:
    from forge.config.model.layer import LayerShape

MARK, PLAIN, SHORT, VALUES = "/", "plain", "short", "values"


def varies(model: LayerShape) -> bool:
    """Whether layers differ by their depth."""
    return bool(model.window_pattern) or model.value_embeddings


def name_at(model: LayerShape, name: str, layer: int) -> str:
    """Return the name of the kind of a layer, counted from 0. name: of its entry in model.kinds."""
    if not varies(model):
        return name
    pattern = model.window_pattern
    marks = [SHORT] if pattern and is_short(pattern, layer, model.n_layers) else []
    marks += [VALUES] if model.value_embeddings and has_values(layer, model.n_layers) else []
    return MARK.join((name, *(marks or [PLAIN])))


def base_of(name: str) -> str:
    """Return the name of a kind's entry in model.kinds."""
    return name.partition(MARK)[0]


def set_options(layer: LayerShape, name: str) -> None:
    """Set the options of a layer of a kind, in place."""
    marks = name.split(MARK)[1:]
    if not marks:
        return
    layer.value_embeddings = VALUES in marks
    if SHORT in marks:
        # A window counts the present token, and a short layer the tokens before it.
        layer.sliding_window_size = short_window(layer.short_window, layer.max_seq_len) + 1
