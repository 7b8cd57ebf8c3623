"""A divided corpus to two token stores, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import numpy as np

from forge.data.shards import COUNTED, Index, ShardWriter
from forge.data.split import Piece, Split
from forge.data.tokenizer import Tokenizer

BATCH_BYTES = 1 << 21
SPLITS = ("train", "val")
OFFSET = np.dtype("<i8")


class Border(Enum):
    """Where a document begins and ends in a split."""

    BEGIN = 1
    END = 2


Items = list[Piece | Border]
EncodeBatch = Callable[[list[str]], Sequence[Sequence[int] | np.ndarray]]


@dataclass
class Side:
    """One split. counted: which of its tokens are targets, where not all are. ends: how many tokens
    there are up to the end of each document.
    """

    writer: ShardWriter
    counted: ShardWriter | None
    n_bytes: int = 0
    pending: Items = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)

    @staticmethod
    def open(folder: Path, *, vocab_size: int, masked: bool) -> Side:
        writer = ShardWriter(folder, vocab_size=vocab_size)
        return Side(writer, ShardWriter(folder / COUNTED, dtype="u1") if masked else None)

    def flush(self, tokenizer: Tokenizer, encode: EncodeBatch | None = None) -> None:
        """Encode and write what is pending. encode: instead of the tokenizer's own."""
        texts = [item.text for item in self.pending if isinstance(item, Piece)]
        self.write(self.pending, (encode or tokenizer.encode_batch)(texts), tokenizer)
        self.pending.clear()

    def write(
        self, items: Items, ids: Iterable[Sequence[int] | np.ndarray], tokenizer: Tokenizer
    ) -> None:
        """ids: of the pieces among the items."""
        if not items:
            return
        self.n_bytes += sum(item.n_bytes for item in items if isinstance(item, Piece))
        own = iter(ids)
        borders = {Border.BEGIN: tokenizer.begin_id, Border.END: tokenizer.last_id}
        of = {border: [] if token is None else [token] for border, token in borders.items()}
        parts = [of[item] if isinstance(item, Border) else next(own) for item in items]
        lengths = [len(part) for part in parts]
        is_end = [item is Border.END for item in items]
        self.ends.append(self.writer.n_tokens + np.cumsum(lengths)[is_end])
        self.writer.append(np.concatenate([np.asarray(part, dtype=np.uint32) for part in parts]))
        if self.counted is not None:
            counts = [
                item is Border.END or (isinstance(item, Piece) and item.counted) for item in items
            ]
            self.counted.append(np.repeat(counts, lengths))

    def close(self) -> Index:
        if self.counted is not None:
            self.counted.close(n_bytes=0, n_documents=0)
        n_documents = sum(map(len, self.ends))
        return self.writer.close(n_bytes=self.n_bytes, n_documents=n_documents)


def encode_splits(
    split: Split, tokenizer: Tokenizer, directory: Path, *, on_bytes: Callable[[int], None]
) -> dict[str, Index]:
    """Write directory/train and directory/val; at most a few MiB of text are in memory.

    Every document begins and ends in each split that has a piece of it. on_bytes is called with the
    bytes read so far.
    """
    size, masked = tokenizer.vocab_size, split.corpus.masked
    sides = [Side.open(directory / name, vocab_size=size, masked=masked) for name in SPLITS]
    waiting = done = 0
    for is_validation, item in with_borders(split.pieces()):
        sides[is_validation].pending.append(item)
        waiting += item.n_bytes if isinstance(item, Piece) else 0
        if waiting >= BATCH_BYTES:
            done, waiting = done + waiting, 0
            for each in sides:
                each.flush(tokenizer)
            on_bytes(done)
    for each in sides:
        each.flush(tokenizer)
    on_bytes(done + waiting)
    return {name: side.close() for name, side in zip(SPLITS, sides, strict=True)}


def with_borders(
    pieces: Iterable[tuple[Piece, bool]],
) -> Iterator[tuple[bool, Piece | Border]]:
    """Pieces, and where documents begin and end, each with whether it is of the validation split: a
    document begins and ends in every split that has a piece of it.
    """
    inside = [False, False]
    for piece, is_validation in pieces:
        if not inside[is_validation]:
            yield is_validation, Border.BEGIN
            inside[is_validation] = True
        yield is_validation, piece
        if piece.last:
            yield from ((bool(side), Border.END) for side in (0, 1) if inside[side])
            inside = [False, False]
