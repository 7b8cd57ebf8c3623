"""No token mixer: a block of a feed-forward layer or experts alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from forge.config.field import section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import Mixer
from forge.config.model.tensors import TensorSpec
from forge.config.rule import Findings, rule


@section
class NoMixer(Mixer):
    """No mixer, and no norm before one: the block is its feed-forward layer, as in Nemotron-H."""

    schema_name = "none"
    reads_documents = True
    recurrent = True
    absent: ClassVar[bool] = True
    _target_: str = "forge.models.mixers.absent.NoBranch"

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        return iter(())

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        return Kept(all=0.0, named={})

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        return {}

    def cached(self, layer: LayerShape, tp: int) -> int:
        return 0


@rule("model.branches", "model.mixer", "model.feed_forward", "model.kinds", "model.layers")
def branches(model: LayerShape) -> Findings:
    """A block has a mixer, a feed-forward layer or experts, or both: not every branch can be
    none.
    """
    for path, layer in model.in_use():
        if layer.mixer.absent and layer.feed_forward.absent:
            message = f"{path} has neither a mixer nor a feed-forward layer."
            yield f"{path}.feed_forward", message, "leave out one of the two choices of none"
