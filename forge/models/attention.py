"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.cache import LayerCache
from forge.models.documents import Seen, as_scores
from forge.models.mixers.block_choice import chosen_keys
from forge.models.norm import make_qk_norm, make_rms_norm
from forge.models.rope import Rotation, rotate, softmax_scale
from forge.models.sdpa import causal_attention, on_device
from forge.models.skips.value_embeddings import ValueEmbedding
from forge.tensors.joined_product import joined_product

KEPT_NAMES = {"wq": "query_proj", "wk": "key_proj", "wv": "value_proj", "wo": "out_proj"}
"""Names of the modules' outputs in `train.recompute`."""


class Attention(nn.Module):
    """Multi-head attention (arXiv:1706.03762) with grouped key/value heads, and the options of the
    model.

    wq makes a head's queries and, with an output gate, the head's gate after the queries. wk may
    make the values too. sinks: a score for each head.
    """

    kept_names = KEPT_NAMES

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.section, self.head_dim = section, section.computed_head_dim
        self.window, self.chunk = section.span
        self.backend, self.scale = section.sdpa_backend, softmax_scale(section, self.head_dim)
        if section.qk_norm:
            self.scale *= section.qk_scale**2  # scores are products of a query and a key
        self.fused = section.fused_qkv
        self.cap, self.gated = section.attn_logits_soft_cap, section.attention_output_gate
        biases = section.attention_biases
        heads_dim, kv_dim = section.n_heads * self.head_dim, section.kv_heads * self.head_dim
        self.grouped = section.kv_heads != section.n_heads
        self.sinks = nn.Parameter(torch.zeros(section.n_heads)) if section.attention_sink else None
        made_by_wq = 2 * heads_dim if self.gated else heads_dim
        self.wq = nn.Linear(section.dim, made_by_wq, bias=biases["q"])
        self.wk = nn.Linear(section.dim, kv_dim, bias=biases["k"])
        self.wv: nn.Linear | None = None
        if not section.share_kv_projections:
            self.wv = nn.Linear(section.dim, kv_dim, bias=biases["v"])
        self.wo = nn.Linear(heads_dim, section.dim, bias=biases["o"])
        self.q_norm = make_qk_norm(section, section.n_heads)
        self.k_norm = make_qk_norm(section, section.kv_heads)
        self.v_norm: nn.Module | None = None
        if section.v_norm:
            with_scale = section.v_norm_with_scale
            self.v_norm = make_rms_norm(section, self.head_dim, with_scale=with_scale)
        self.value_embedding = ValueEmbedding(section) if section.value_embeddings else None

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
        **named: Any,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the earlier tokens. named: as of
        `heads`.
        """
        return self.wo(self.heads(x, rotation, cache, *seen, **named))

    def heads(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
        tokens: Tensor | None = None,
        lent: Any = None,
    ) -> Tensor:
        """x: [batch, seq, dim] -> outputs of all heads, [batch, seq, heads * head_dim].

        tokens: [batch, seq], for value embeddings. lent: takes keys and values for later layers.
        """
        # No list holds queries and keys before rotation while kernels attend: it is a block's peak.
        q, k, *values = (y.unflatten(-1, (-1, self.head_dim)) for y in self.input_products(x))
        v = values[0] if values else k
        v = v if self.v_norm is None else self.v_norm(v)
        if self.value_embedding is not None:
            v = self.value_embedding(v, x, tokens)
        gate = None
        if self.gated:
            # Queries and gate alternate head by head, so a cut of wq's rows has both of each head.
            q, gate = q[..., ::2, :], q[..., 1::2, :]
        q, k = self.placed(q, k, rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        k, v = (k, v) if cache is None else cache.append(k, v)
        if lent is not None:
            lent.take(keys=k, values=v)
        heads = self.attend(q, k, v, *seen)
        heads = heads.transpose(1, 2)
        return (heads if gate is None else heads * gate.sigmoid()).flatten(2)

    def input_products(self, x: Tensor) -> list[Tensor]:
        """The outputs of wq, wk and, if there is one, wv for x: [batch, seq, dim]."""
        layers = [layer for layer in (self.wq, self.wk, self.wv) if layer is not None]
        if self.fused:
            return joined_product(x, layers)
        return [layer(x) for layer in layers]

    def choose_kernel(self, capability: tuple[int, int]) -> None:
        """Take the fastest kernel on a GPU of this compute capability."""
        self.backend = on_device(self.backend, capability)

    def placed(self, q: Tensor, k: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Normalise and rotate queries and keys, [batch, seq, heads, head_dim]."""
        late = self.section.qk_norm_after_rope
        if not late:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None and self.section.position == "rope":
            adjacent = self.section.rope_interleave
            q, k = (rotate(x, rotation, adjacent=adjacent) for x in (q, k))
        elif rotation is not None:  # a layer without rotation, with temperatures
            q = (q * rotation[0]).type_as(q)
        return (self.q_norm(q), self.k_norm(k)) if late else (q, k)

    def of_heads(self) -> list[tuple[nn.Linear, list[float]]]:
        """Layers scaled by QK-Clip, with the power of the factor for each output of a head. Keys
        shared by several heads or with the values stay; the queries then take the whole factor.
        """
        # A score is a product of query and key: each takes the root of the factor. Gates stay.
        gate = [0.0] * self.head_dim if self.gated else []
        if self.grouped or self.wv is None:
            return [(self.wq, [1.0] * self.head_dim + gate)]
        half = [0.5] * self.head_dim
        return [(self.wq, half + gate), (self.wk, half)]

    def sinks_here(self) -> Tensor | None:
        """Sinks of the heads given to `attend`."""
        return self.sinks

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen | None = None) -> Tensor:
        """q: [batch, heads, seq, head_dim]; k, v: [batch, kv_heads, keys, head_dim] -> as q.

        With more keys than queries the queries are of the last tokens. seen: as of
        `causal_attention`. With `model.moba` fewer keys, those of chosen blocks.
        """
        options = {"scale": self.scale, "cap": self.cap, "sinks": self.sinks_here(), "seen": seen}
        if self.section.moba and self.section.chooses_blocks(k.shape[2]):
            assert not isinstance(seen, BlockMask)
            blocks = {"chunk": self.section.moba_chunk_size, "topk": self.section.moba_topk}
            options["seen"] = as_scores(chosen_keys(q, k, seen=seen, **blocks), q.dtype)
        span = {"window": self.window, "chunk": self.chunk}
        return causal_attention(q, k, v, self.backend, **span, **options)
