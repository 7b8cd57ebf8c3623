"""The changes of an adapter to a model, and the model without the adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from forge.build import build
from forge.config.adapters.adapter import Adapter as AdapterSection
from forge.config.root import Config
from forge.models.decoder import Decoder


class Adapter:
    """Base of adapters: hooks at the moments of change to a model, empty here."""

    def __init__(self, section: AdapterSection) -> None:
        self.section = section

    def inject(self, model: nn.Module) -> None:
        """Add parameters to a whole model on the meta device, and to its table."""

    def pack(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Store frozen weights in another form, before the model is cut over ranks.

        dtype: of products.
        """

    def activate(self, model: nn.Module) -> None:
        """Let the layers of a model, or of a stage, compute with the added parameters, in place."""

    def begin(self, model: nn.Module) -> None:
        """Set added parameters to values derived from the model's weights, now filled."""

    def take_out(self, model: nn.Module) -> None:
        """Move a part of the weights into the added parameters, at the first step of a run."""


def decoder_of(model: nn.Module) -> Decoder:
    """A model as the decoder that adapters change; a rule refuses other models."""
    assert isinstance(model, Decoder), model
    return model


def adapter_of(config: Config) -> Adapter:
    """Build the adapter of a run from its section."""
    return build(config.adapter, path="adapter", trust=config.run.trust)


class Adapted(nn.Module):
    """Mixin of a layer beside an adapter."""

    adapter_is_on: bool


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Run a model without its adapters inside of the context."""
    layers = [layer for layer in model.modules() if isinstance(layer, Adapted)]
    states = [layer.adapter_is_on for layer in layers]
    try:
        for layer in layers:
            layer.adapter_is_on = False
        yield
    finally:
        for layer, was_on in zip(layers, states, strict=True):
            layer.adapter_is_on = was_on
