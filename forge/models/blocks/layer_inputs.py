"""Blocks with further parts, as in Gemma 4, and what a decoder gives single layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from forge.build import build_part
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.shared_attention import lenders
from forge.config.model.moe import is_moe_layer
from forge.models.blocks.block import Block
from forge.models.dropout import Noise
from forge.models.feed_forward import ACTIVATIONS
from forge.models.mixers.shared_attention import SharedKeysValues
from forge.models.mixin import mix_in
from forge.models.norm import make_norm, make_rms_norm


class LayerScalar(nn.Module):
    """A number that a layer's output is multiplied by; of a checkpoint, not trained."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.to(x.dtype)

    def reset_buffers(self) -> None:
        self.factor.fill_(1)


class LongBlock(Block):
    """A block whose experts and dense layer are branches, each with norms before and after; then
    an input of the layer itself, and a factor; as far as its section has them.
    """

    def __init__(
        self, section: DecoderConfig, layer: int, noise: Noise | None = None, name: str = ""
    ) -> None:
        super().__init__(section, layer, noise, name)
        branched = section.moe.branch_norms and is_moe_layer(section.moe, layer)
        self.dense: nn.Module | None = None
        if branched:
            self.feed_forward_norm = None  # each branch has one
            self.dense_norm = make_norm(section)
            self.dense = build_part(section.feed_forward, section)
            self.dense_post_norm = make_norm(section)
            self.experts_post_norm = make_norm(section)
        width, dim = section.per_layer_input_width, section.dim
        self.layer_input_gate = nn.Linear(dim, width, bias=False) if width else None
        if width:
            self.layer_input_projection = nn.Linear(width, dim, bias=False)
            self.layer_input_norm = make_rms_norm(section, dim)
        self.activation = ACTIVATIONS[section.activation]
        self.layer_scalar = LayerScalar() if section.layer_scalar else None

    def forward(self, x: Tensor, *rest: Any, layer_input: Any = None, **named: Any) -> Tensor:
        """As in `Block`. layer_input: [batch, seq, width], of the layer itself."""
        x = super().forward(x, *rest, **named)
        if self.layer_input_gate is not None:
            made = self.activation(self.layer_input_gate(self._in_format(x))) * layer_input
            x = x + self.layer_input_norm(self.layer_input_projection(made))
        return x if self.layer_scalar is None else self.layer_scalar(x)

    def feed(self, x: Tensor) -> Tensor:
        if self.dense is None:
            return super().feed(x)
        assert self.feed_forward is not None
        y = self.dense_post_norm(self.dense(self.dense_norm(x)))
        y = y + self.experts_post_norm(self.feed_forward(x))
        return self._added(x, y, self.feed_forward_post_norm, self.feed_forward_dropout, None)

    def _in_format(self, x: Tensor) -> Tensor:
        """The residual stream, which may be wider, in the format of the norms' weights."""
        return x.to(self.layer_input_norm.weight.dtype)


class TableOfLayers(nn.Module):
    """Inputs of all layers: rows of a table by token, and a projection of the embeddings."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.layers, self.width = section.n_layers, section.per_layer_input_width
        total = self.layers * self.width
        self.table = nn.Embedding(section.vocab_size, total)
        self.projection = nn.Linear(section.dim, total, bias=False)
        self.norm = make_rms_norm(section, self.width)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        """tokens: [batch, seq]; x: [batch, seq, dim], their embeddings -> [batch, seq, layers,
        width].
        """
        of_tokens = self.table(tokens) * math.sqrt(self.width)
        projected = self.projection(x.to(of_tokens.dtype)) * x.shape[-1] ** -0.5
        of_layers = self.norm(projected.unflatten(-1, (self.layers, self.width)))
        return (of_layers + of_tokens.view_as(of_layers)) * math.sqrt(0.5)


class LayerInputsMixin:
    """Mixin of a decoder: inputs of single layers, and keys of layers for later ones."""

    layer_inputs: TableOfLayers | None
    lenders: dict[int, int]

    def layer_inputs_of(self, x: Tensor, tokens: Tensor) -> Any:
        of_layers = None if self.layer_inputs is None else self.layer_inputs(tokens, x)
        return InputsByLayer(of_layers, self.lenders)


class InputsByLayer:
    """Further arguments of the blocks of one forward pass.

    of_layers: [batch, seq, layers, width]. lenders: by layer, the one whose keys it reads.
    """

    def __init__(self, of_layers: Tensor | None, lenders: dict[int, int]) -> None:
        self.of_layers, self.lenders = of_layers, lenders
        self.lent = {lender: SharedKeysValues() for lender in set(lenders.values())}

    def get(self, layer: str, _: Any = None) -> dict[str, Any]:
        """Arguments of a block, when its turn comes."""
        number = int(layer)
        named: dict[str, Any] = {}
        if self.of_layers is not None:
            named["layer_input"] = self.of_layers[:, :, number]
        if number in self.lent:
            named["lent"] = self.lent[number]
        if number in self.lenders:
            named |= self.lent[self.lenders[number]].given()
        return named


def add_layer_inputs(model: Any, section: DecoderConfig) -> None:
    """Give a decoder what its section says of inputs of single layers and of shared keys."""
    lent = {reader: lender for reader, lender in lenders(section).items() if lender is not None}
    has_table = section.per_layer_input_width > 0
    if not lent and not has_table:
        return
    mix_in(model, LayerInputsMixin)
    model.layer_inputs = TableOfLayers(section) if has_table else None
    model.lenders = lent
