"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig
from forge.models.cache import LayerCache
from forge.models.norm import RMSNorm
from forge.models.rope import Rotation, rotate
from forge.models.sdpa import causal_attention


class Attention(nn.Module):
    """Multi-head attention (arXiv:1706.03762) with grouped key/value heads and optional QK-norm."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        self.head_dim = section.head_dim
        self.backend = section.sdpa_backend
        heads_dim, kv_dim = section.n_heads * self.head_dim, section.kv_heads * self.head_dim
        self.wq = nn.Linear(section.dim, heads_dim, bias=section.bias)
        self.wk = nn.Linear(section.dim, kv_dim, bias=section.bias)
        self.wv = nn.Linear(section.dim, kv_dim, bias=section.bias)
        self.wo = nn.Linear(heads_dim, section.dim, bias=section.bias)
        self.q_norm, self.k_norm = (
            RMSNorm(self.head_dim, eps=section.norm_eps) if section.qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(
        self, x: Tensor, rotation: Rotation | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the tokens before these."""
        batch, seq, _ = x.shape
        q = self.q_norm(self.wq(x).view(batch, seq, -1, self.head_dim))
        k = self.k_norm(self.wk(x).view(batch, seq, -1, self.head_dim))
        v = self.wv(x).view(batch, seq, -1, self.head_dim)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if cache is None:
            heads = self.attend(q, k, v)
        else:
            heads = causal_attention(q, *cache.append(k, v), self.backend)
        return self.wo(heads.transpose(1, 2).reshape(batch, seq, -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [batch, heads, seq, head_dim]; k, v: [batch, kv_heads, seq, head_dim] -> as q."""
        return causal_attention(q, k, v, self.backend)
