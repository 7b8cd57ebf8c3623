"""Base of the sections of token mixers, a block's layers in the place of attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from omegaconf import MISSING

from forge.config.field import Section, section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import TensorSpec

OF_HEADS = (
    *("n_kv_heads", "head_dim", "q_bias", "k_bias", "v_bias", "o_bias"),
    *("qk_norm", "qk_norm_width", "qk_norm_with_scale", "qk_norm_after_rope", "qk_scale"),
    *("value_embeddings", "v_norm", "v_norm_with_scale", "attention_sink", "share_kv_projections"),
    *("attention_output_gate", "temperature_tuning", "fused_qkv"),
    *("moba", "moba_chunk_size", "moba_topk"),
)
"""Options of multi-head attention alone."""
OF_SCORES = (
    *("sliding_window_size", "chunk_attn_window_size", "attn_logits_soft_cap", "query_scale"),
    "sdpa_backend",
)
"""Options of the scores of tokens, which a recurrent mixer has none of."""


class Passed(NamedTuple):
    """What context parallelism sends of a run of tokens of a sequence, beside attention: the last
    `tokens`, of `channels` numbers each, and `numbers` of the state.
    """

    tokens: int
    channels: int
    numbers: int


@section
class Mixer(Section):
    """What tokens learn of those before them with. The target is built with the section of its
    layer, in which this one is `mixer`, and called with hidden states, rotation and cache.

    unread: options of the layer's attention that it does not read. reads_documents: whether it
    keeps documents apart that share a row: then it is also called with what is added to scores.
    clips_qk: whether its target has `of_heads`, which QK-Clip scales. recurrent: whether it reads
    tokens in their order into a state: it has no keys that other tokens could read, and where
    documents share a row it is given the places of tokens in them instead of scores.
    goes_round: whether its target has the scale, cap, window and chunk of a softmax over scores,
    which a ring of ranks computes part by part.
    absent: whether the block has no mixer at all. layer: that section, in each of the methods.
    """

    unread: ClassVar[tuple[str, ...]] = ()
    reads_documents: ClassVar[bool] = False
    clips_qk: ClassVar[bool] = False
    goes_round: ClassVar[bool] = False
    recurrent: ClassVar[bool] = False
    absent: ClassVar[bool] = False
    _target_: str = MISSING

    @property
    def reads_choice(self) -> bool:
        """Whether the layer reads the keys that an earlier layer chose."""
        return False

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """Yield the parameters in the module's order, by their names inside of the module."""
        raise NotImplementedError

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return the training FLOPs a token, besides the matrices in `tensors`."""
        return 0

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept | None:
        """Return the memory kept for the backward pass; None = unknown."""
        return None

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        """Return the numbers of heads cut by tp, by option.

        tp must divide the first number; several ranks may share one head of the others.
        """
        return {"n_heads": layer.n_heads, "n_kv_heads": layer.kv_heads}

    def passed(self, layer: LayerShape, tp: int) -> Passed | None:
        """Return the numbers passed on by a recurrent mixer; None = context parallelism cannot."""
        return None

    def cached(self, layer: LayerShape, tp: int) -> int:
        """Return the values of a token that a rank keeps while it writes on; 0 = a state alone."""
        if "n_kv_heads" in self.unread:
            return 0
        return 2 * max(layer.kv_heads // tp, 1) * layer.computed_head_dim

    def rotary_dim(self, layer: LayerShape) -> int:
        """Return the width of the rotated part of a head."""
        return layer.rotated(layer.computed_head_dim)
