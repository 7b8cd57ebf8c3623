"""Attention to the keys and values of an earlier layer, and what layers give to later ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.attention import Attention
from forge.models.cache import LayerCache
from forge.models.documents import Seen
from forge.models.rope import Rotation, rotate


class SharedKeysValues:
    """Tensors of a layer for later layers: keys and values, [batch, kv_heads, keys, head_dim], or
    the mask of the chosen keys, [batch, 1, seq, keys].
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] | None = None

    def take(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def given(self) -> dict[str, Tensor]:
        """Arguments of a later layer's mixer: tensors, so that recomputation keeps them."""
        assert self.tensors is not None, "the layer that makes them runs first"
        return self.tensors


class SharedAttention(Attention):
    """Attention whose keys and values are those of an earlier layer, normed and rotated there."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__(section)
        del self.wk
        self.wv, self.v_norm, self.k_norm = None, None, nn.Identity()

    def heads(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
        **named: Any,
    ) -> Tensor:
        """x: [batch, seq, dim] -> outputs of all heads. named: keys and values, as in
        `SharedKeysValues`.
        """
        q, late = self.wq(x).unflatten(-1, (-1, self.head_dim)), self.section.qk_norm_after_rope
        q = q if late else self.q_norm(q)
        if rotation is not None and self.section.position == "rope":
            q = rotate(q, rotation, adjacent=self.section.rope_interleave)
        elif rotation is not None:
            q = (q * rotation[0]).type_as(q)
        q = (self.q_norm(q) if late else q).transpose(1, 2)
        if cache is not None:
            cache.keep(x.shape[1])
        return self.attend(q, named["keys"], named["values"], *seen).transpose(1, 2).flatten(2)

    def of_heads(self) -> list[tuple[nn.Linear, list[float]]]:
        """Queries alone: other layers read the keys too."""
        return [(self.wq, [1.0] * self.head_dim)]
