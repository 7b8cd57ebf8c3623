"""The feed-forward layer of two or three matrices, sized by options of the model."""

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
    """Yield the tensors of a feed-forward layer of this width."""
    for name in ("w_gate", "w_up") if layer.is_gated else ("w_up",):
        yield from linear(name, width, layer.dim, part=part, bias=bias, tp=0)
    yield from linear("w_down", layer.dim, width, part=part, bias=bias, tp=1, residual=True)


def dense_kept(layer: LayerShape, width: int, numbers: Numbers, *, in_stream: bool = False) -> Kept:
    """Return the memory kept by a feed-forward layer of this width.

    in_stream: whether the output is summed up over ranks at once, and cut like hidden states.
    """
    hidden = -(-width // numbers.tp)
    tensors = {name: numbers.product(hidden * numbers.tp, layer.dim) for name in into(layer)}
    ranks = numbers.tokens_cut if in_stream else 1
    tensors["mlpwo"] = numbers.product(layer.dim, width, ranks)
    wide = numbers.width * hidden
    remade = wide * remade_copies(layer)
    return Kept(all=wide * copies(layer), named=tensors, remade=remade)


def into(layer: LayerShape, prefix: str = "") -> tuple[str, ...]:
    """Return the names of the products of the layer's first matrices."""
    return tuple(f"{prefix}mlpwi_{n}" for n in range(2 if layer.is_gated else 1))


def copies(layer: LayerShape) -> int:
    """Count the kept tensors as wide as the layer.

    These are the input of the activation (not for ReLU) and the output, for quick_gelu also the
    sigmoid; with a gate, the other factor and the product; with a limit, the values before the
    limit.
    """
    limited = 1 if layer.mlp_activations_limit else 0
    activation = {"relu": 1, "quick_gelu": 3}.get(layer.activation, 2)
    return activation + limited + (2 + limited if layer.is_gated else 0)


def remade_copies(layer: LayerShape) -> int:
    """Count the tensors of `copies` that a compiled layer computes again: all but inputs of the
    activation, of the gate and of the last matrix.
    """
    return copies(layer) - min(copies(layer), 3 if layer.is_gated else 2)
