"""A divided corpus to two token stores, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from forge.data.shards import COUNTED, Index, ShardWriter
from forge.data.split import Piece, Split
from forge.data.tokenizer import Tokenizer

BATCH_BYTES = 1 << 21
SPLITS = ("train", "val")


@dataclass
class _Side:
    """One split. counted: which of its tokens are targets, where not all are. pending: pieces, and
    None where a document ends.
    """

    writer: ShardWriter
    counted: ShardWriter | None
    n_bytes: int = 0
    n_documents: int = 0
    pending: list[Piece | None] = field(default_factory=list)
    in_document: bool = False


def encode_splits(
    split: Split, tokenizer: Tokenizer, directory: Path, *, on_bytes: Callable[[int], None]
) -> dict[str, Index]:
    """Write directory/train and directory/val; at most a few MiB of text are in memory.

    One end-of-text follows every document in each split that has a piece of it. on_bytes is called
    with the bytes read so far.
    """
    size = tokenizer.vocab_size
    sides = []
    for folder in (directory / name for name in SPLITS):
        writer = ShardWriter(folder, vocab_size=size)
        masked = split.corpus.masked
        sides.append(_Side(writer, ShardWriter(folder / COUNTED, dtype="u1") if masked else None))
    waiting = done = 0
    for piece, is_validation in split.pieces():
        side = sides[is_validation]
        side.pending.append(piece)
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
    for counted in filter(None, (side.counted for side in sides)):
        counted.close(n_bytes=0, n_documents=0)
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
        ids = iter(tokenizer.encode_batch([piece.text for piece in side.pending if piece]))
        parts = [next(ids) if piece else [tokenizer.eos_id] for piece in side.pending]
        if parts:
            side.writer.append(np.concatenate([np.array(part, dtype=np.uint32) for part in parts]))
        if parts and side.counted is not None:
            counts = [piece is None or piece.counted for piece in side.pending]
            side.counted.append(np.repeat(counts, [len(part) for part in parts]))
        side.pending.clear()
