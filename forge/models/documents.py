"""Documents that share a row: each document is read alone.

The keys seen by a query are given by a mask, or by blocks of queries and keys for torch's
flex_attention (arXiv:2412.05496), a kernel that skips empty blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from forge.config.model.attention_options import Span
from forge.models.head import soft_cap

BLOCK = 128  # queries and keys of a block


Seen = Tensor | BlockMask


class Packed(NamedTuple):
    """Positions and masks of rows shared by documents.

    positions: of this rank's tokens in their documents, [batch, seq]. seen: keys seen by this
    rank's queries, by the span of a layer; bool [batch, 1, queries, keys], or blocks.
    """

    positions: Tensor
    seen: Mapping[Span, Seen]


def positions_and_masks(
    documents: Tensor, spans: Iterable[Span], *, tokens: Tensor, queries: Tensor
) -> Packed:
    """Make positions and masks of documents: [batch, seq], the document number of each token of
    whole rows, never falling. tokens: indices of this rank's tokens, [n]; queries: indices of the
    tokens that attend on this rank, to all keys.
    """
    keys = torch.arange(documents.shape[1], device=documents.device)
    behind = queries[:, None] - keys

    def seen(span: Span) -> Tensor:
        parts = in_chunks(documents, span.chunk)
        visible = (parts[:, queries, None] == parts[:, None]) & (behind >= 0)
        return (visible & (behind < span.window) if span.window else visible).unsqueeze(1)

    return Packed(
        positions=positions_in(documents)[:, tokens],
        seen={span: seen(span) for span in sorted(set(spans))},
    )


def as_scores(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a bool mask into a summand of scores: 0 where a key is seen, else -inf. Attention would
    convert a bool mask itself, and keep a copy for each layer.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


def scores_or_blocks(seen: Seen, dtype: torch.dtype) -> Seen:
    """A mask as a summand of scores; blocks unchanged."""
    return as_scores(seen, dtype) if isinstance(seen, Tensor) else seen


def branches_and_masks(
    branches: Tensor, spans: Iterable[Span], *, tokens: Tensor, queries: Tensor
) -> Packed:
    """Make positions and masks of texts that share their beginnings; see `positions_and_masks`.

    branches: [batch, seq], for each token of whole rows the index after the last token that sees
    it. A token is followed by all that resumes from it, text after text, so it is seen by all
    between itself and that index. Positions and spans count along a text.
    """
    indices = torch.arange(branches.shape[1], device=branches.device)
    visible = (indices <= indices[:, None]) & (indices[:, None] < branches[:, None])
    positions = visible.sum(-1) - 1
    visible, here, keys = visible[:, queries], positions[:, queries, None], positions[:, None]

    def seen(span: Span) -> Tensor:
        mask = visible
        if span.chunk:
            mask = mask & (here // span.chunk == keys // span.chunk)
        return (mask & (here - keys < span.window) if span.window else mask).unsqueeze(1)

    return Packed(positions[:, tokens], {span: seen(span) for span in sorted(set(spans))})


def packed_in_blocks(documents: Tensor, spans: Iterable[Span]) -> Packed:
    """Make positions and blocks of documents of whole rows, like `positions_and_masks`."""
    blocks = {
        span: visible_blocks(in_chunks(documents, span.chunk), span.window)
        for span in sorted(set(spans))
    }
    return Packed(positions=positions_in(documents), seen=blocks)


def in_chunks(documents: Tensor, chunk: int) -> Tensor:
    """Cut documents into runs of `chunk` tokens, numbered alike; 0 = uncut."""
    if not chunk:
        return documents
    return (positions_in(documents) % chunk == 0).cumsum(1)


def positions_in(documents: Tensor) -> Tensor:
    """The position of each token in its document, [batch, seq]."""
    indices = torch.arange(documents.shape[1], device=documents.device)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return indices - torch.where(begins, indices, 0).cummax(1).values


def visible_blocks(documents: Tensor, window: int) -> BlockMask:
    """List the blocks of keys that each block of queries sees in part, and in full.

    Document numbers never fall, so the nearest pair of two blocks tells whether any key is seen,
    and the farthest pair whether every key is seen: neither time nor memory grows with seq^2.
    """
    seq, device = documents.shape[1], documents.device
    first = torch.arange(0, seq, BLOCK, device=device)
    last = (first + BLOCK).clamp(max=seq) - 1

    def seen(queries: Tensor, keys: Tensor) -> Tensor:
        """Compare a query of each block with a key of each block, [batch, 1, blocks, blocks]."""
        same_document = documents[:, queries, None] == documents[:, None, keys]
        near = queries[:, None] - keys < window if window else torch.ones_like(same_document)
        return (same_document & near).unsqueeze(1)

    earlier = first[:, None] > first  # blocks of keys before the blocks of queries
    diagonal = torch.eye(len(first), dtype=torch.bool, device=device)
    # A shorter last block does not count as full, as in torch's own masks.
    full = seen(last, first) & earlier & (last - first == BLOCK - 1)[:, None]
    partly = (seen(first, last) & earlier | diagonal) & ~full

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        visible = (documents[batch, query] == documents[batch, key]) & (query >= key)
        return visible & (query - key < window) if window else visible

    return BlockMask.from_kv_blocks(
        *_listed(partly), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(seq, seq)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number of the marked blocks of each row, and the indices, marked blocks first: int32."""
    order = blocks.int().sort(dim=-1, descending=True, stable=True).indices
    return blocks.sum(-1, dtype=torch.int32), order.int()


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: BlockMask,
    *,
    scale: float | None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend over whole rows by blocks; q, k, v, scale, cap and sinks as in `causal_attention`. A
    single kernel when compiled.
    """
    if torch.is_autocast_enabled(q.device.type):  # flex_attention ignores autocast
        width = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(width), k.to(width), v.to(width)

    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return soft_cap(score, cap)

    attend: Any = flex_attention  # returns a tensor, or with return_aux a pair
    options = {"block_mask": blocks, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    options |= {"score_mod": capped} if cap else {}
    if sinks is None:
        return attend(q, k, v, **options)
    heads, aux = attend(q, k, v, return_aux=AuxRequest(lse=True), **options)
    # A sink adds exp(sink) to the softmax's denominator exp(lse): a sigmoid of the difference.
    share = (aux.lse - sinks.to(aux.lse.dtype).view(-1, 1)).sigmoid()
    return (heads * share.unsqueeze(-1)).to(heads.dtype)
