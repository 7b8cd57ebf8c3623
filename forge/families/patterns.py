"""Kinds of layers: `layer_types` of config.json, and model.kinds with model.layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.keys import Keys

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
LINEAR = "linear_attention"


def layer_options(
    types: Sequence[str], of_type: Mapping[str, Mapping[str, Any]], *, plain: str = FULL
) -> dict[str, Any]:
    """Return the options of a model with layers of these types.

    of_type: options of each type, by the name of its kind; the type `plain` is the default kind.
    """
    kinds = {name: dict(values) for name, values in of_type.items() if name in types}
    if len(set(types)) == 1:
        return kinds.get(types[0], {})
    kinds_of_layers = ["default" if layer_type == plain else layer_type for layer_type in types]
    default = kinds.pop(plain, {})
    return default | {"kinds": kinds, "layers": kinds_of_layers[: period(types)]}


def period(types: Sequence[str]) -> int:
    """Return the number of layers after which the types repeat."""
    fits = (n for n in range(1, len(types)) if all(t == types[i % n] for i, t in enumerate(types)))
    return next(fits, len(types))


def read_types(keys: Keys, n_layers: int | None, usual: Sequence[str]) -> list[str]:
    """Return `layer_types`, or the usual types without such a key."""
    types = list(keys.take("layer_types", default=usual))
    if n_layers is not None and len(types) != n_layers:
        keys.faults.append(f"layer_types has {len(types)} entries for {n_layers} layers")
    return types


def read_windows(keys: Keys, n_layers: int | None, *, used: bool = True) -> dict[str, Any]:
    """Read a window of all layers, or of the layers from max_window_layers on, as in Qwen."""
    window = keys.number("sliding_window", default=None) if used else None
    first = keys.number("max_window_layers", default=0) if used else 0
    keys.inert("sliding_window", "max_window_layers")
    count = n_layers or 0
    usual = [SLIDING if window and layer >= first else FULL for layer in range(count)]
    types = read_types(keys, n_layers, usual)
    if unknown := [layer_type for layer_type in types if layer_type not in (FULL, SLIDING)]:
        keys.faults.append(f"layer_types has {unknown[0]!r}")
    return layer_options(types, {SLIDING: {"sliding_window_size": window or 0}})


def attention_types(section: Decoder) -> list[str]:
    """Return full or sliding attention for each layer."""
    layers = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
    return [SLIDING if layer.sliding_window_size else FULL for layer in layers]


def window_of(section: Decoder) -> int | None:
    """Return the window of the layers with windows, None without such layers."""
    windows = [layer.sliding_window_size for _, layer in section.in_use()]
    return next((window for window in windows if window), None)
