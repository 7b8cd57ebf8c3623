"""Kinds of layers: `layer_types` of config.json, and model.kinds with model.layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.keys import Keys

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
LINEAR = "linear_attention"


def options(
    types: Sequence[str], of_type: Mapping[str, Mapping[str, Any]], *, plain: str = FULL
) -> dict[str, Any]:
    """Options of a model whose layers have these types. of_type: what each has of its own, by the
    name of its kind; the type `plain` is the default kind.
    """
    kinds = {name: dict(values) for name, values in of_type.items() if name in types}
    if len(set(types)) == 1:
        return kinds.get(types[0], {})
    named = ["default" if one == plain else one for one in types]
    default = kinds.pop(plain, {})
    return default | {"kinds": kinds, "layers": named[: period(types)]}


def period(types: Sequence[str]) -> int:
    """After how many layers their types repeat."""
    fits = (n for n in range(1, len(types)) if all(t == types[i % n] for i, t in enumerate(types)))
    return next(fits, len(types))


def read_types(keys: Keys, n_layers: int | None, usual: Sequence[str]) -> list[str]:
    """`layer_types`, or the usual ones where there are none."""
    found = list(keys.take("layer_types", default=usual))
    if n_layers is not None and len(found) != n_layers:
        keys.faults.append(f"layer_types has {len(found)} entries for {n_layers} layers")
    return found


def windows(keys: Keys, n_layers: int | None, *, used: bool = True) -> dict[str, Any]:
    """One window of all layers, or of those from max_window_layers on, as in Qwen."""
    window = keys.number("sliding_window", default=None) if used else None
    first = keys.number("max_window_layers", default=0) if used else 0
    keys.inert("sliding_window", "max_window_layers")
    count = n_layers or 0
    usual = [SLIDING if window and layer >= first else FULL for layer in range(count)]
    types = read_types(keys, n_layers, usual)
    if unknown := [one for one in types if one not in (FULL, SLIDING)]:
        keys.faults.append(f"layer_types has {unknown[0]!r}")
    return options(types, {SLIDING: {"sliding_window_size": window or 0}})


def types_of(section: Decoder) -> list[str]:
    """Full or sliding attention, of each layer."""
    seen = [section.of_kind(section.kind_of(n).name) for n in range(section.n_layers)]
    return [SLIDING if one.sliding_window_size else FULL for one in seen]


def window_of(section: Decoder) -> int | None:
    """The window of the layers that have one."""
    found = [layer.sliding_window_size for _, layer in section.in_use()]
    return next((window for window in found if window), None)
