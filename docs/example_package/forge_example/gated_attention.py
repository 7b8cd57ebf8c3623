"""Attention whose output is gated, a head's value at a time (arXiv:2505.06708)."""

from __future__ import annotations

from torch import Tensor, nn

from forge.api import Attention, DecoderSection, LayerCache, Rotation


class GatedAttention(Attention):
    def __init__(self, section: DecoderSection) -> None:
        super().__init__(section)
        width = section.n_heads * section.computed_head_dim
        self.w_gate = nn.Linear(section.dim, width, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Tensor,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        return self.wo(self.w_gate(x).sigmoid() * self.heads(x, rotation, cache, *seen))
