"""Examples: documents of a split read together, each at the beginning of its own row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge.data.batches.packing import Plan
from forge.data.tokens.store import COUNTS, TokenStore


@dataclass(frozen=True, kw_only=True)
class Examples(Plan):
    """A sample is an example, and each piece a row."""

    @property
    def rows(self) -> int:
        """Number of rows in each sample."""
        return len(self.pieces) // max(len(self), 1)

    @property
    def n_tokens(self) -> int:
        return int(np.diff(self.pieces, axis=1).sum()) - len(self.pieces)

    def said(self, seq_len: int) -> str:
        """Number of examples, and of those cut or left out for length, in words."""
        share = self.n_tokens / max(len(self.pieces) * seq_len, 1)
        text = f"{len(self):,} examples of {self.rows} rows, which are {share:.1%} full"
        if self.cut_off:
            text += f"; {self.cut_off:,} cut at train.seq_len"
        return text + (f"; {self.left_out:,} left out" if self.left_out else "")


def plan_examples(store: TokenStore, *, seq_len: int, too_long: str) -> Examples:
    """The examples of a split in their order. too_long: truncate, drop or refuse examples with a
    document of more than seq_len + 1 tokens; a truncated one without a target is left out.

    ValueError, naming data.too_long: an example is too long, with too_long=refuse.
    """
    edges, room = store.offsets, seq_len + 1
    starts, stops = (side.reshape(-1, store.together) for side in (edges[:-1], edges[1:]))
    lengths = stops - starts
    long = lengths > room
    chosen = np.all(lengths > 1, axis=1)
    if too_long == "refuse" and long.any():
        fault = (
            f"{long.any(1).sum():,} of {len(starts):,} examples have more than train.seq_len + 1"
        )
        fault += f" = {room:,} tokens, the longest {lengths.max():,}"
        hint = f"Set train.seq_len={lengths.max() - 1}, or data.too_long=truncate or drop"
        raise ValueError(f"data.too_long=refuse: {fault}. {hint}.")
    if too_long == "drop":
        chosen &= ~long.any(1)
    stops = np.minimum(stops, starts + room)
    assert store.counted is not None
    for example, row in zip(*np.nonzero(long & chosen[:, None]), strict=True):
        first, stop = int(starts[example, row]) + 1, int(stops[example, row])
        chosen[example] &= bool((store.counted.read(first, stop) & COUNTS).any())
    return Examples(
        pieces=np.stack([starts[chosen].ravel(), stops[chosen].ravel()], axis=1).astype(np.int64),
        begins=np.arange(chosen.sum() + 1) * store.together,
        cut_off=int((long.any(1) & chosen).sum()),
        left_out=int((~chosen).sum()),
    )
