"""What an adapter does to a model; and the model without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from forge.build import build
from forge.config.adapters.adapter import Adapter as AdapterSection
from forge.config.root import Config


class Adapter:
    """The moments at which an adapter changes a model; this one changes nothing."""

    def __init__(self, section: AdapterSection) -> None:
        self.section = section

    def inject(self, model: nn.Module) -> None:
        """Add parameters to a whole model on the meta device, and to its table."""

    def pack(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Keep weights that stay as they are in another form, before it is cut over ranks. dtype:
        of what is multiplied.
        """

    def activate(self, model: nn.Module) -> None:
        """Have the layers of a model, or of a stage, compute with what was added, in place."""

    def begin(self, model: nn.Module) -> None:
        """Give what was added the values that follow from the weights of the model, which are there
        by now.
        """

    def take_out(self, model: nn.Module) -> None:
        """At the first step of a run, have what was added begin as a part of the weights, of which
        these keep the rest.
        """


def adapter_of(config: Config) -> Adapter:
    """What changes the model of a run as its section says."""
    return build(config.adapter, path="adapter", trust=config.run.trust)


class Adapted(nn.Module):
    """Mixin of a layer that an adapter stands beside."""

    adapter_is_on: bool


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside, a model is what it was without its adapters."""
    layers = [layer for layer in model.modules() if isinstance(layer, Adapted)]
    before = [layer.adapter_is_on for layer in layers]
    try:
        for layer in layers:
            layer.adapter_is_on = False
        yield
    finally:
        for layer, was_on in zip(layers, before, strict=True):
            layer.adapter_is_on = was_on
