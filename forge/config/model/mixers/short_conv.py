"""Gated short convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import opt, section
from forge.config.model.activations import FP32, Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import OF_HEADS, OF_SCORES, Mixer, Passed
from forge.config.model.tensors import BIAS, NORM, TensorSpec, Uniform, linear


@section
class ShortConv(Mixer):
    """A gated convolution over a few tokens, as in LFM2: `wo(c(x) * conv(b(x) * wx(x)))`. It reads
    tokens in their order, and needs no positions.
    """

    schema_name = "short_conv"
    reads_documents = True
    recurrent = True
    unread = (*OF_HEADS, *OF_SCORES, "bias")
    _target_: str = "forge.models.mixers.short_conv.ShortConv"
    conv_kernel_dim: int = opt(3, "tokens that the convolution sees, with the present one", gt=0)
    conv_bias: bool = opt(False, "add biases to the convolution and to the projections around it")

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        """Return the channels: any of them can be on a rank of its own."""
        return {"dim": layer.dim}

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """Yield the parameters; the convolution has the role of a norm, as in a gated delta net."""
        dim, bias, taps = layer.dim, self.conv_bias, self.conv_kernel_dim
        cut: dict[str, Any] = {"part": "attention", "tp": 0}
        # The first values of torch's Conv1d with one channel a group.
        even = Uniform(-(taps**-0.5), taps**-0.5)
        yield TensorSpec(name="conv", shape=(dim, taps), role=NORM, initial=even, **cut)
        if bias:
            yield TensorSpec(name="conv_bias", shape=(dim,), role=BIAS, **cut)
        for name in ("wb", "wc", "wx"):
            yield from linear(name, dim, dim, bias=bias, **cut)
        yield from linear("wo", dim, dim, part="attention", tp=1, bias=bias, residual=True)

    def passed(self, layer: LayerShape, tp: int) -> Passed:
        return Passed(self.conv_kernel_dim - 1, -(-layer.dim // tp), 0)

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        """Return the memory kept: the three projections, what is convolved, in fp32, and the two
        factors and the product after the convolution.
        """
        channels, width = -(-layer.dim // numbers.tp), numbers.width
        names = ("query_proj", "key_proj", "value_proj")
        tensors = {name: numbers.product(channels * numbers.tp, layer.dim) for name in names}
        tensors["out_proj"] = numbers.to_stream(layer.dim, layer.dim)
        return Kept(all=channels * (5 * width + FP32), named=tensors, remade=channels * FP32)
