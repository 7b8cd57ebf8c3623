"""A divided corpus to two token stores, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from forge.data.shards import Index, ShardWriter
from forge.data.split import Split
from forge.data.tokenizer import Tokenizer

BATCH_BYTES = 1 << 21
SPLITS = ("train", "val")


@dataclass
class _Side:
    writer: ShardWriter
    n_bytes: int = 0
    n_documents: int = 0
    pending: list[str | None] = field(default_factory=list)
    in_document: bool = False


def encode_splits(
    split: Split, tokenizer: Tokenizer, directory: Path, *, on_bytes: Callable[[int], None]
) -> dict[str, Index]:
    """Write directory/train and directory/val; at most a few MiB of text are in memory.

    One end-of-text follows every document in each split that has a piece of it. on_bytes is called
    with the bytes read so far.
    """
    size = tokenizer.vocab_size
    sides = [_Side(ShardWriter(directory / name, vocab_size=size)) for name in SPLITS]
    waiting = done = 0
    for piece, is_validation in split.pieces():
        side = sides[is_validation]
        side.pending.append(piece.text)
        side.n_bytes += piece.n_bytes
        side.in_document = True
        if piece.last:
            _end_document(sides)
        waiting += piece.n_bytes
        if waiting >= BATCH_BYTES:
            done, waiting = done + waiting, 0
            _flush(sides, tokenizer)
            on_bytes(done)
    _flush(sides, tokenizer)
    on_bytes(done + waiting)
    return {
        name: side.writer.close(n_bytes=side.n_bytes, n_documents=side.n_documents)
        for name, side in zip(SPLITS, sides, strict=True)
    }


def _end_document(sides: list[_Side]) -> None:
    for side in sides:
        if side.in_document:
            side.pending.append(None)
            side.n_documents += 1
            side.in_document = False


def _flush(sides: list[_Side], tokenizer: Tokenizer) -> None:
    for side in sides:
        ids = iter(tokenizer.encode_batch([text for text in side.pending if text is not None]))
        parts = [[tokenizer.eos_id] if text is None else next(ids) for text in side.pending]
        if parts:
            side.writer.append(np.concatenate([np.array(part, dtype=np.uint32) for part in parts]))
        side.pending.clear()
