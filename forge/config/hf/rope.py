"""Rotary positions as config.json says them: `rope_parameters`, in older files rope_theta and
rope_scaling.
"""

from __future__ import annotations

import math
from typing import Any

from forge.config.hf.keys import Keys
from forge.config.model import Decoder

TYPES = {"default": "default", "llama3": "llama3.1", "yarn": "yarn"}
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def read(keys: Keys, *, theta: float = 10000.0, scores: bool = False) -> dict[str, Any]:
    """The options of rotary positions. theta: where the file has none. scores: with yarn scores are
    multiplied in place of cosines and sines, as in DeepSeek.
    """
    base = keys.number("rope_theta", default=theta)
    stated = keys.take("rope_parameters", "rope_scaling", default=None) or {}
    longest = keys.number("max_position_embeddings", default=None)
    partial = keys.number("partial_rotary_factor", default=None)
    found = dict(stated)
    if partial is not None:
        found.setdefault("partial_rotary_factor", partial)
    return of_parameters(keys, found, theta=base, longest=longest, scores=scores)


def of_parameters(
    keys: Keys, stated: dict[str, Any], *, theta: float, longest: int | None, scores: bool = False
) -> dict[str, Any]:
    """The same of one dict of them."""
    inner = Keys(stated)
    kind = inner.take("rope_type", "type", default="default")
    options: dict[str, Any] = {"rope_theta": float(inner.number("rope_theta", default=theta))}
    if kind not in TYPES:
        keys.faults.append(f"rope_type={kind!r} is none of {', '.join(TYPES)}")
        return options
    options["rope_type"] = TYPES[kind]
    inner.only("partial_rotary_factor", 1.0, 1, why="forge rotates whole heads")
    if kind == "default":
        inner.inert("factor", "original_max_position_embeddings")
    else:
        original = inner.number("original_max_position_embeddings", default=longest)
        options["original_max_position_embeddings"] = original
        options["rope_factor"] = inner.number("factor")
    if kind == "llama3":
        options["beta_slow"] = inner.number("low_freq_factor")
        options["beta_fast"] = inner.number("high_freq_factor")
    elif kind == "yarn":
        options |= _yarn(inner, options["rope_factor"], scores)
    inner.finish()
    keys.faults += [f"rope_parameters: {fault}" for fault in inner.faults]
    return options


def _yarn(keys: Keys, factor: float | None, scores: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "beta_fast": keys.number("beta_fast", default=32),
        "beta_slow": keys.number("beta_slow", default=1),
        "rope_truncate": keys.take("truncate", default=True),
    }
    scale, of_all = (keys.number(n, default=0) for n in ("mscale", "mscale_all_dim"))
    stated = keys.number("attention_factor", default=None)
    grown = 0.1 * math.log(factor) if factor and factor > 1 else 0.0
    if scores and of_all:
        if scale and scale != of_all:
            keys.faults.append(f"mscale={scale} and mscale_all_dim={of_all} must be equal")
        return found | {"mscale": float(of_all), "rope_attention_scaling": False}
    if stated is None:
        stated = 1 + grown if not (scale and of_all) else (1 + scale * grown) / (1 + of_all * grown)
    mscale = (stated - 1) / grown if grown else 1.0
    if mscale < 0:
        keys.faults.append(f"attention_factor={stated}: forge has none below 1")
    return found | {"mscale": round(mscale, 12), "rope_attention_scaling": True}


def write(layer: Decoder) -> dict[str, Any]:
    """The dict of rotary positions of a layer."""
    found: dict[str, Any] = {"rope_theta": layer.rope_theta, "rope_type": "default"}
    if layer.stretches == "default":
        return found
    found["rope_type"] = {ours: theirs for theirs, ours in TYPES.items()}[layer.rope_type]
    found["factor"] = float(layer.rope_factor)
    found["original_max_position_embeddings"] = layer.original_max_position_embeddings
    if layer.rope_type == "llama3.1":
        slow, fast = float(layer.beta_slow), float(layer.beta_fast)
        return found | {"low_freq_factor": slow, "high_freq_factor": fast}
    found |= {"beta_fast": float(layer.beta_fast), "beta_slow": float(layer.beta_slow)}
    found["truncate"] = layer.rope_truncate
    if not layer.rope_attention_scaling:
        return found | {"mscale": layer.mscale, "mscale_all_dim": layer.mscale}
    if layer.mscale != 1:
        found["attention_factor"] = 0.1 * layer.mscale * math.log(layer.rope_factor) + 1
    return found
