"""No feed-forward layer: a block of a token mixer alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from forge.config.field import section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec


@section
class NoFeedForward(FeedForward):
    """No feed-forward layer or experts, and no norm before one, as in Nemotron-H."""

    schema_name = "none"
    absent: ClassVar[bool] = True
    _target_: str = "forge.models.mixers.absent.NoBranch"

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        return iter(())

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        return Kept(all=0.0, named={})
