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
class Side:
    """One split. counted: which of its tokens are targets, where not all are. pending: pieces, and
    None where a document ends.
    """

    writer: ShardWriter
    counted: ShardWriter | None
    n_bytes: int = 0
    n_documents: int = 0
    pending: list[Piece | None] = field(default_factory=list)
    in_document: bool = False

    @staticmethod
    def open(folder: Path, *, vocab_size: int, masked: bool) -> Side:
        writer = ShardWriter(folder, vocab_size=vocab_size)
        return Side(writer, ShardWriter(folder / COUNTED, dtype="u1") if masked else None)

    def flush(self, tokenizer: Tokenizer) -> None:
        """Encode and write what is pending."""
        texts = [piece.text for piece in self.pending if piece]
        self.n_bytes += sum(piece.n_bytes for piece in self.pending if piece)
        self.n_documents += self.pending.count(None)
        ids = iter(tokenizer.encode_batch(texts))
        parts = [next(ids) if piece else [tokenizer.eos_id] for piece in self.pending]
        if parts:
            self.writer.append(np.concatenate([np.array(part, dtype=np.uint32) for part in parts]))
        if parts and self.counted is not None:
            counts = [piece is None or piece.counted for piece in self.pending]
            self.counted.append(np.repeat(counts, [len(part) for part in parts]))
        self.pending.clear()

    def close(self) -> Index:
        if self.counted is not None:
            self.counted.close(n_bytes=0, n_documents=0)
        return self.writer.close(n_bytes=self.n_bytes, n_documents=self.n_documents)


def encode_splits(
    split: Split, tokenizer: Tokenizer, directory: Path, *, on_bytes: Callable[[int], None]
) -> dict[str, Index]:
    """Write directory/train and directory/val; at most a few MiB of text are in memory.

    One end-of-text follows every document in each split that has a piece of it. on_bytes is called
    with the bytes read so far.
    """
    size, masked = tokenizer.vocab_size, split.corpus.masked
    sides = [Side.open(directory / name, vocab_size=size, masked=masked) for name in SPLITS]
    waiting = done = 0
    for piece, is_validation in split.pieces():
        side = sides[is_validation]
        side.pending.append(piece)
        side.in_document = True
        if piece.last:
            _end_document(sides)
        waiting += piece.n_bytes
        if waiting >= BATCH_BYTES:
            done, waiting = done + waiting, 0
            for each in sides:
                each.flush(tokenizer)
            on_bytes(done)
    for each in sides:
        each.flush(tokenizer)
    on_bytes(done + waiting)
    return {name: side.close() for name, side in zip(SPLITS, sides, strict=True)}


def _end_document(sides: list[Side]) -> None:
    for side in sides:
        if side.in_document:
            side.pending.append(None)
            side.in_document = False
