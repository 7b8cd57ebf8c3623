"""Base of the sections of token mixers: what a block has in the place of attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from omegaconf import MISSING

from forge.config.field import Section, section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec

OF_HEADS = (
    *("n_kv_heads", "head_dim", "q_bias", "k_bias", "v_bias", "o_bias"),
    *("qk_norm", "qk_norm_width", "qk_norm_with_scale", "qk_norm_after_rope"),
    *("v_norm", "v_norm_with_scale", "attention_sink", "share_kv_projections"),
    *("attention_output_gate", "temperature_tuning"),
)
"""Options of multi-head attention that no other mixer reads."""


@section
class Mixer(Section):
    """What tokens learn of those before them with. The target is built with the section of its
    layer, in which this one is `mixer`, and called with hidden states, rotation and cache.

    unread: options of the layer's attention that it does not read. reads_documents: whether it
    keeps documents apart that share a row: then it is also called with what is added to scores.
    clips_qk: whether its target has `of_heads`, which QK-Clip scales. recurrent: whether it reads
    tokens in their order into a state: it has no keys that other tokens could read, and where
    documents share a row it is given the places of tokens in them instead of scores.
    layer: that section, in each of the methods.
    """

    unread: ClassVar[tuple[str, ...]] = ()
    reads_documents: ClassVar[bool] = False
    clips_qk: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    _target_: str = MISSING

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """The parameters, by their names inside of the module, in its order."""
        raise NotImplementedError

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Training FLOPs a token, besides those of the matrices in `tensors`."""
        return 0

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept | None:
        """What is kept for the backward pass; None = not known."""
        return None

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        """Numbers of heads that tp cuts, by option: it must divide the first; of the others several
        ranks may share one.
        """
        return {"n_heads": layer.n_heads, "n_kv_heads": layer.kv_heads}

    def rotary_dim(self, layer: LayerShape) -> int:
        """Width of the part of a head that is rotated."""
        return layer.rotated(layer.computed_head_dim)
