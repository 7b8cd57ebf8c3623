"""The feed-forward layer of two or three matrices; its width and activation are options of the
model.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec, linear


@section
class Dense(FeedForward):
    """`w_down(f(w_gate(x)) * w_up(x))`, or without a gate `w_down(f(w_up(x)))`."""

    schema_name = "dense"
    _target_: str = "forge.models.feed_forward.FeedForward"

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        return dense_tensors(layer, layer.computed_ffn_hidden_dim, bias=layer.has_mlp_bias)

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        return dense_kept(layer, layer.computed_ffn_hidden_dim, numbers, in_stream=True)


def dense_tensors(
    layer: LayerShape, width: int, *, part: str = "feed-forward", bias: bool = False
) -> Iterator[TensorSpec]:
    """Those of a layer of that width."""
    for name in ("w_gate", "w_up") if layer.is_gated else ("w_up",):
        yield from linear(name, width, layer.dim, part=part, bias=bias, tp=0)
    yield from linear("w_down", layer.dim, width, part=part, bias=bias, tp=1, residual=True)


def dense_kept(layer: LayerShape, width: int, numbers: Numbers, *, in_stream: bool = False) -> Kept:
    """What a layer of that width keeps. in_stream: whether what it gives is summed up over ranks at
    once, and cut as hidden states are.
    """
    here = -(-width // numbers.tp)
    named = {name: numbers.product(here * numbers.tp, layer.dim) for name in into(layer)}
    ranks = numbers.tokens_cut if in_stream else 1
    named["mlpwo"] = numbers.product(layer.dim, width, ranks)
    return Kept(all=numbers.width * here * copies(layer), named=named)


def into(layer: LayerShape, prefix: str = "") -> tuple[str, ...]:
    """Names of what its first matrices make."""
    return tuple(f"{prefix}mlpwi_{n}" for n in range(2 if layer.is_gated else 1))


def copies(layer: LayerShape) -> int:
    """Tensors as wide as the layer: what the activation reads (not ReLU) and writes, of quick_gelu
    also the sigmoid, what it is multiplied with, the product, and what was there before a limit.
    """
    limited = 1 if layer.mlp_activations_limit else 0
    activation = {"relu": 1, "quick_gelu": 3}.get(layer.activation, 2)
    return activation + limited + (2 + limited if layer.is_gated else 0)
