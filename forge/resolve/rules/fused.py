"""Rules on joined matrix products: model.fused_qkv and model.fused_gate_up."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.adapters.adapter import Adapter
from forge.config.model.decoder import Decoder
from forge.config.quantization import Quantization
from forge.config.recompute import CUSTOM, REMAT
from forge.config.rule import Findings, rule
from forge.config.train import Train

QKV, GATE_UP = "fused_qkv", "fused_gate_up"
FUSED = (f"model.{QKV}", f"model.{GATE_UP}", "model.kinds", "model.layers")
NAMES = {
    QKV: ("query_proj", "key_proj", "value_proj"),
    GATE_UP: ("mlpwi_0", "mlpwi_1"),
}
"""Names of the joined products in train.recompute."""


def _fused(model: Decoder) -> Iterator[tuple[str, str]]:
    """Yield the key and the option of every kind of layer with a joined product."""
    for layer_key, layer in model.in_use():
        for option in (QKV, GATE_UP):
            if getattr(layer, option) and option not in layer.mixer.unread:
                yield f"{layer_key}.{option}", option


@rule("model.fused_adapter", *FUSED, "adapter")
def fused_adapter(model: Decoder, adapter: Adapter) -> Findings:
    """A joined product has no place for the matrices of an adapter, which stand beside each of its
    matrices.
    """
    for key, _ in _fused(model):
        if adapter.active:
            yield key, f"{key}=false"


@rule("model.fused_quantization", *FUSED, "quantization")
def fused_quantization(model: Decoder, quantization: Quantization) -> Findings:
    """A joined product is of unchanged numbers: quantization changes each matrix's product."""
    for key, _ in _fused(model):
        if quantization.in_products:
            yield key, f"{key}=false"


@rule("model.fused_places", *FUSED, "train.activation_checkpointing", "train.recompute")
def fused_places(model: Decoder, train: Train) -> Findings:
    """A joined product is kept whole: its parts have the same place in train.recompute."""
    if train.activation_checkpointing != CUSTOM:
        return
    places, layers = train.policy.places, train.policy.layers
    for key, option in _fused(model):
        kept = {(places.get(name, REMAT), layers.get(name)) for name in NAMES[option]}
        if len(kept) > 1:
            names = ", ".join(NAMES[option])
            yield key, f"{names} are one product, and have several places.", f"{key}=false"
