"""Mixture of block attention: each query reads a few blocks of keys."""

from __future__ import annotations

from forge.config.field import Condition, opt, section
from forge.config.model.attention_options import AttentionOptions

MOBA = "model.moba"
CHOOSES = Condition(
    lambda config, ranks: any(layer.moba for _, layer in config.model.in_use()),
    f"without {MOBA}=true",
)


@section
class BlockAttention(AttentionOptions):
    moba: bool = opt(
        False,
        "mixture of block attention: a query reads the block of keys it stands in, and the blocks "
        "before with the largest products of query and mean key",
    )
    moba_chunk_size: int = opt(
        1024,
        "keys of a block, counted from the first token of a document; smaller blocks are chosen "
        "better",
        gt=0,
        acts_when=CHOOSES,
    )
    moba_topk: int = opt(8, "blocks that a query reads, its own included", gt=0, acts_when=CHOOSES)

    def chooses_blocks(self, seq_len: int) -> bool:
        """Whether queries of a sequence of this length read fewer than all blocks."""
        return self.moba and self.moba_chunk_size * self.moba_topk < seq_len

    def seen(self, seq_len: int) -> int:
        seen = super().seen(seq_len)
        return min(seen, self.moba_chunk_size * self.moba_topk) if self.moba else seen
