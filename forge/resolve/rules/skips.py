"""Rules on ways around layers, and on windows by a pattern."""

from __future__ import annotations

from forge.config.model.decoder import Decoder
from forge.config.model.window_pattern import LONG, SHORT
from forge.config.parallel import Parallel
from forge.config.rule import Findings, rule

PATTERN, VALUES = "model.window_pattern", "model.value_embeddings"
CARRIED = {
    "value_embeddings": "the tables of values read tokens, which the first stage alone has",
    "x0_scalars": "each layer reads the input of the first one, which stays on the first stage",
    "backout": "the end reads the middle layer, which is on another stage",
}
"""Options that a pipeline does not carry, and the reason."""


@rule("parallel.pp_skips", "parallel.pp", *(f"model.{option}" for option in CARRIED))
def pp_skips(model: Decoder, parallel: Parallel) -> Findings:
    """A pipeline sends hidden states of one layer from stage to stage: nothing passes around
    layers.
    """
    for option, reason in CARRIED.items():
        if parallel.pp > 1 and getattr(model, option):
            yield f"model.{option}", f"{reason}.", f"parallel.pp=1, or model.{option}=false"


@rule(
    PATTERN,
    PATTERN,
    "model.sliding_window_size",
    "model.chunk_attn_window_size",
    "model.kinds",
    "model.layers",
)
def window_pattern(model: Decoder) -> Findings:
    """model.window_pattern is of the letters S and L, and sets the windows of all layers alone."""
    pattern = model.window_pattern
    if not pattern:
        return
    if others := sorted(set(pattern.upper()) - {SHORT, LONG}):
        message = f"model.window_pattern={pattern} has {others[0]!r}, and a layer is S or L."
        yield PATTERN, message, "model.window_pattern=SSSL"
    for layer_key, layer in model.in_use():
        for option in ("sliding_window_size", "chunk_attn_window_size"):
            if getattr(layer, option):
                message = f"{layer_key}.{option} sets a window beside model.window_pattern."
                yield f"{layer_key}.{option}", message, f"{layer_key}.{option}=0"


@rule(VALUES, VALUES, "model.mixer", "model.kinds", "model.layers")
def value_embeddings(model: Decoder) -> Findings:
    """model.value_embeddings is for the values of attention: some layer must have them."""
    unread = ["value_embeddings" in layer.mixer.unread for _, layer in model.in_use()]
    if model.value_embeddings and all(unread):
        yield VALUES, f"{VALUES}=false"
