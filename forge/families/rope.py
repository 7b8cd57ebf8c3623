"""Rotary positions in config.json.

Newer files have `rope_parameters`, older files rope_theta and rope_scaling.
"""

from __future__ import annotations

from typing import Any

from forge.config.model.decoder import Decoder
from forge.families.keys import Keys

TYPES = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3.1",
    "yarn": "yarn",
    "longrope": "longrope",
    "proportional": "proportional",
}
"""Hugging Face's names and forge's."""
LENGTH = "original_max_position_embeddings"


def read_rope(
    keys: Keys,
    *,
    theta: float = 10000.0,
    usual: dict[str, Any] | None = None,
    scores: bool = False,
) -> dict[str, Any]:
    """Return the options of rotary positions.

    theta, usual: values without an entry in the file. scores: with yarn the scores are multiplied
    too, as in DeepSeek.
    """
    stated = dict(keys.take("rope_parameters", "rope_scaling", default=usual) or {})
    for name in ("rope_theta", "partial_rotary_factor", LENGTH):
        value = keys.number(name, default=None)
        if value is None:
            continue
        if stated.setdefault(name, value) != value and name == LENGTH and _by_length(stated):
            fault = f"{name} is {value} beside the rotation and {stated[name]} in it"
            keys.faults.append(fault)
    longest = keys.number("max_position_embeddings", default=None)
    return of_parameters(keys, stated, theta=theta, longest=longest, scores=scores)


def _by_length(stated: dict[str, Any]) -> bool:
    """Whether transformers prefers the length beside the rotation to that in it."""
    return stated.get("rope_type", stated.get("type")) in ("llama3", "yarn", "longrope")


def of_parameters(
    keys: Keys, stated: dict[str, Any], *, theta: float, longest: int | None, scores: bool = False
) -> dict[str, Any]:
    """Return the options of rotary positions from one dict of parameters."""
    inner = Keys(stated)
    kind = inner.take("rope_type", "type", default="default")
    if kind == "mrope":  # of text all three positions are equal
        kind = "default"
    options: dict[str, Any] = {"rope_theta": float(inner.number("rope_theta", default=theta))}
    if kind not in TYPES:
        keys.faults.append(f"rope_type={kind!r} is none of {', '.join(TYPES)}")
        return options
    options["rope_type"] = TYPES[kind]
    options["partial_rotary_factor"] = float(inner.number("partial_rotary_factor", default=1.0))
    original = inner.number("original_max_position_embeddings", default=longest)
    if kind in ("llama3", "yarn", "longrope", "dynamic"):
        options["original_max_position_embeddings"] = original
    factor = inner.number("factor", default=None)
    if kind != "default":
        if factor is None:
            factor = longest / original if longest and original and kind != "linear" else 1.0
        options["rope_factor"] = factor
    if kind == "llama3":
        options["beta_slow"] = inner.number("low_freq_factor")
        options["beta_fast"] = inner.number("high_freq_factor")
    elif kind == "yarn":
        options |= _yarn(inner, scores)
    elif kind == "longrope":
        options["rope_short_factor"] = inner.take("short_factor")
        options["rope_long_factor"] = inner.take("long_factor")
        options["rope_attention_factor"] = inner.number("attention_factor", default=None)
    inner.finish()
    keys.faults += [f"rope_parameters: {fault}" for fault in inner.faults]
    return {name: value for name, value in options.items() if value is not None}


def _yarn(keys: Keys, scores: bool) -> dict[str, Any]:
    """Return the options of yarn and of its factor of cosines and sines.

    The factor is attention_factor. Without attention_factor, the factor is the ratio of the roots
    of mscale and mscale_all_dim, where both are given; otherwise the root of 1.
    """
    options: dict[str, Any] = {
        "beta_fast": keys.number("beta_fast", default=32),
        "beta_slow": keys.number("beta_slow", default=1),
        "rope_truncate": keys.take("truncate", default=True),
        "rope_attention_factor": keys.number("attention_factor", default=None),
    }
    mscale, of_all = (keys.number(name, default=0) for name in ("mscale", "mscale_all_dim"))
    scaled = scores and bool(of_all)
    options["rope_attention_scaling"] = not scaled
    if mscale and of_all:
        options |= {"mscale": float(mscale), "mscale_all_dim": float(of_all)}
    elif scaled:
        keys.faults.append("mscale_all_dim without mscale is in no model that forge knows")
    return options


def write_rope(layer: Decoder) -> dict[str, Any]:
    """Return the keys read by `read_rope`, in names known to every version of transformers."""
    scaling = rope_parameters(layer)
    theta, kind = scaling.pop("rope_theta"), scaling["rope_type"]
    partial = scaling.pop("partial_rotary_factor", None)
    keys = {"rope_theta": theta, "rope_scaling": None if kind == "default" else scaling}
    return keys if partial is None else keys | {"partial_rotary_factor": partial}


def rope_parameters(layer: Decoder) -> dict[str, Any]:
    """Return the dict of rotary positions of a layer."""
    kind = layer.stretches
    hf_name = {name: hf_name for hf_name, name in TYPES.items()}[kind]
    config: dict[str, Any] = {"rope_theta": layer.rope_theta, "rope_type": hf_name}
    if layer.partial_rotary_factor != 1:
        config["partial_rotary_factor"] = layer.partial_rotary_factor
    if kind != "default":
        config["factor"] = float(layer.rope_factor)
    if kind in ("llama3.1", "yarn", "longrope", "dynamic"):
        config["original_max_position_embeddings"] = layer.original_max_position_embeddings
    if kind == "llama3.1":
        slow, fast = float(layer.beta_slow), float(layer.beta_fast)
        config |= {"low_freq_factor": slow, "high_freq_factor": fast}
    if kind == "yarn":
        config |= {"beta_fast": float(layer.beta_fast), "beta_slow": float(layer.beta_slow)}
        config["truncate"] = layer.rope_truncate
        config |= _yarn_scales(layer)
    if kind == "longrope":
        config["short_factor"] = list(layer.rope_short_factor)
        config["long_factor"] = list(layer.rope_long_factor)
        config["attention_factor"] = layer.rope_attention_factor
    return config


def _yarn_scales(layer: Decoder) -> dict[str, Any]:
    if not layer.rope_attention_scaling and layer.rope_attention_factor is None:
        of_all = layer.mscale if layer.mscale_all_dim is None else layer.mscale_all_dim
        return {"mscale": layer.mscale, "mscale_all_dim": of_all}
    usual = layer.yarn_root(1.0)
    return {} if layer.rotary_scale == usual else {"attention_factor": layer.rotary_scale}
