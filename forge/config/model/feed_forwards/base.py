"""Base of the sections of feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from omegaconf import MISSING

from forge.config.field import Section, section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec


@section
class FeedForward(Section):
    """What each token passes by itself. The target is built with the section of its layer, in which
    this one is `feed_forward`, and called with hidden states.

    absent: whether the block has no such layer, and no experts in its place. layer: that section,
    in each of the methods.
    """

    absent: ClassVar[bool] = False
    _target_: str = MISSING

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """Yield the parameters in the module's order, by their names inside of the module."""
        raise NotImplementedError

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept | None:
        """Return the memory kept for the backward pass; None = unknown."""
        return None
