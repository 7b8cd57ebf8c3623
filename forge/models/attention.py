"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig
from forge.models.cache import LayerCache
from forge.models.documents import Seen
from forge.models.norm import make_rms_norm
from forge.models.rope import Rotation, rotate, softmax_scale
from forge.models.sdpa import causal_attention


class Attention(nn.Module):
    """Multi-head attention (arXiv:1706.03762) with grouped key/value heads and optional QK-norm."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.head_dim, self.window = section.computed_head_dim, section.sliding_window_size
        self.backend, self.scale = section.sdpa_backend, softmax_scale(section, self.head_dim)
        self.adjacent = section.rope_interleave
        biases = section.attention_biases
        heads_dim, kv_dim = section.n_heads * self.head_dim, section.kv_heads * self.head_dim
        self.grouped = section.kv_heads != section.n_heads
        self.wq = nn.Linear(section.dim, heads_dim, bias=biases["q"])
        self.wk = nn.Linear(section.dim, kv_dim, bias=biases["k"])
        self.wv = nn.Linear(section.dim, kv_dim, bias=biases["v"])
        self.wo = nn.Linear(heads_dim, section.dim, bias=biases["o"])
        self.q_norm, self.k_norm = (
            make_rms_norm(section, self.head_dim) if section.qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the tokens before these."""
        return self.wo(self.heads(x, rotation, cache, *seen))

    def heads(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Seen,
    ) -> Tensor:
        """x: [batch, seq, dim] -> what all heads give, [batch, seq, heads * head_dim]."""
        batch, seq, _ = x.shape
        q = self.q_norm(self.wq(x).view(batch, seq, -1, self.head_dim))
        k = self.k_norm(self.wk(x).view(batch, seq, -1, self.head_dim))
        v = self.wv(x).view(batch, seq, -1, self.head_dim)
        if rotation is not None:
            q, k = (rotate(each, rotation, adjacent=self.adjacent) for each in (q, k))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        heads = self.attend(q, *((k, v) if cache is None else cache.append(k, v)), *seen)
        return heads.transpose(1, 2).reshape(batch, seq, -1)

    def of_heads(self) -> list[tuple[nn.Linear, list[float]]]:
        """What QK-Clip scales: layers whose outputs are heads, and of each output of a head the
        power of the factor. Keys of several heads stay, and their queries take all of it.
        """
        if self.grouped:
            return [(self.wq, [1.0] * self.head_dim)]
        return [(self.wq, [0.5] * self.head_dim), (self.wk, [0.5] * self.head_dim)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Seen | None = None) -> Tensor:
        """q: [batch, heads, seq, head_dim]; k, v: [batch, kv_heads, keys, head_dim] -> as q.

        With more keys than queries these are of the last tokens. seen: as of `causal_attention`.
        """
        how = {"window": self.window, "scale": self.scale, "seen": seen}
        return causal_attention(q, k, v, self.backend, **how)
