"""Mixture of block attention (MoBA, arXiv:2502.13189): the blocks of keys that a query reads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


@torch.no_grad()
def chosen_keys(
    q: Tensor, k: Tensor, *, chunk: int, topk: int, seen: Tensor | None = None
) -> Tensor:
    """q: [batch, heads, seq, width], k: [batch, kv_heads, keys, width], rotated -> the keys read by
    each query: bool [batch, heads, seq, keys].

    Blocks of `chunk` keys are counted from the first token of a document. A query reads the block
    that it stands in, up to itself, and of the complete blocks before it the `topk` - 1 with the
    largest products of query and mean key. seen: a summand of scores, 0 where a key is of the same
    document and not later, [batch, 1, seq, keys]; null = one document, whose last tokens are the
    queries.
    """
    places = _places(q.shape[2], k.shape[2], q.device, seen)
    visible, starts, queries, key_starts = places
    number = k.shape[2] // chunk  # complete blocks at most
    index = torch.arange(k.shape[2], device=q.device)
    first = index - (index - key_starts) % chunk  # of the block of a key: [batch or 1, keys]
    end = (first + chunk - 1).clamp(max=len(index) - 1)
    complete = (first + chunk <= len(index)) & (key_starts.gather(1, end) == key_starts)
    begins = complete & (first == index) & (key_starts >= 0)
    block_of_key = (begins.cumsum(1) - 1).clamp(min=0)
    # First keys of complete blocks, in order; sorted, since sizes must not depend on values.
    firsts = begins.int().sort(dim=1, descending=True, stable=True).indices[:, :number]
    real = torch.arange(number, device=q.device) < begins.sum(1, keepdim=True)
    here = queries - (queries - starts) % chunk  # first key of the query's block: [.., seq]
    earlier = real[:, None] & (firsts[:, None] < here[..., None])
    earlier = (earlier & (firsts[:, None] >= starts[..., None])).unsqueeze(1)
    block = (index >= here[..., None]).unsqueeze(1)
    if topk == 1 or not number:
        return (visible & block).expand(len(q), q.shape[1], -1, -1)
    gates = _gates(q, k, firsts, chunk).masked_fill(~earlier, -torch.inf)
    best = gates.topk(min(topk - 1, number), -1).indices
    chosen = torch.zeros_like(gates, dtype=torch.bool).scatter(-1, best, True) & earlier
    of_keys = block_of_key[:, None, None].expand(*gates.shape[:3], -1)
    return visible & (block | (chosen.gather(-1, of_keys) & complete[:, None, None]))


class Places(NamedTuple):
    """Documents of queries and keys, with batch 1 where all rows are alike.

    visible: [batch, 1, seq, keys]. starts: index of the first key of a query's document, [batch,
    seq]. queries: index of the key of a query's token. key_starts: as starts, of keys, [batch,
    keys]; -1 for a key that no query sees.
    """

    visible: Tensor
    starts: Tensor
    queries: Tensor
    key_starts: Tensor


def _places(seq: int, keys: int, device: torch.device, seen: Tensor | None) -> Places:
    index = torch.arange(keys, device=device)
    if seen is None:
        queries = index[None, keys - seq :]
        zeros = torch.zeros_like(index)[None]
        visible = (index <= queries[..., None]).unsqueeze(1)
        return Places(visible, zeros[:, :seq], queries, zeros)
    visible = seen == 0
    in_rows = visible.squeeze(1)
    starts = torch.where(in_rows, index, keys).amin(-1)
    queries = torch.where(in_rows, index, -1).amax(-1)
    key_starts = torch.where(in_rows, starts[..., None], -1).amax(-2)
    return Places(visible, starts, queries, key_starts)


def _gates(q: Tensor, k: Tensor, firsts: Tensor, chunk: int) -> Tensor:
    """Products of queries and means of the blocks that begin at keys `firsts`, [batch, blocks], in
    fp32 at least: [batch, heads, seq, blocks].
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    inside = firsts[..., None] + torch.arange(chunk, device=q.device)
    inside = inside.clamp(max=k.shape[2] - 1).flatten(1)[:, None, :, None]
    keys = k.gather(2, inside.expand(len(k), k.shape[1], -1, k.shape[3]))
    with torch.autocast(q.device.type, enabled=False):
        means = keys.to(wide).unflatten(2, (-1, chunk)).mean(3)
        queries = q.to(wide).unflatten(1, (k.shape[1], -1))
        return (queries @ means.unsqueeze(2).mT).flatten(1, 2)
