"""Encoding of a divided corpus to two token stores, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from forge.data.batches.stream_rows import Tokens
from forge.data.text.conversation import Conversation, Rendered, Renders
from forge.data.text.reading import Example, Pair
from forge.data.text.split import Piece, Split, pieces
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.shards import (
    COUNTED,
    Index,
    IndexedStore,
    ShardWriter,
    write_examples,
)
from forge.data.tokens.store import COUNTS, ENDS, GOES_ON, LIKED

BATCH_BYTES = 1 << 21
SPLITS = ("train", "val")
OFFSET = np.dtype("<i8")


class Border(Enum):
    """Beginning and end of a document in a split."""

    BEGIN = 1
    END = 2


Items = list[Piece | Border]
EncodeBatch = Callable[[list[str]], Sequence[Sequence[int] | np.ndarray]]
Encoded = Sequence[int] | np.ndarray | Rendered
"""The tokens of a piece."""


@dataclass
class SplitWriter:
    """Writer of one split. counted: the marks of its tokens, where not all are targets. render:
    makes tokens of conversations, for a corpus of conversations. ends: number of tokens up to the
    end of each document.
    """

    writer: ShardWriter
    counted: ShardWriter | None
    render: Renders | None = None
    n_bytes: int = 0
    pending: Items = field(default_factory=list)
    ends: list[np.ndarray] = field(default_factory=list)

    @staticmethod
    def open(
        folder: Path, *, vocab_size: int, masked: bool, render: Renders | None = None
    ) -> SplitWriter:
        writer = ShardWriter(folder, vocab_size=vocab_size)
        counted = ShardWriter(folder / COUNTED, dtype="u1") if masked else None
        return SplitWriter(writer, counted, render)

    def flush(self, tokenizer: Tokenizer, encode: EncodeBatch | None = None) -> None:
        """Encode and write the pending items. encode: instead of the tokenizer's own."""
        items = list(self.pending)
        self.write(items, self.encoded(tokenizer, encode), tokenizer)

    def encoded(self, tokenizer: Tokenizer, encode: EncodeBatch | None = None) -> Sequence[Encoded]:
        """Take the pending items; return the tokens of their pieces."""
        pending = [item for item in self.pending if isinstance(item, Piece)]
        self.pending.clear()
        return _encoded(pending, tokenizer, self.render, encode or tokenizer.encode_batch)

    def write(self, items: Items, ids: Iterable[Encoded], tokenizer: Tokenizer) -> None:
        """Write items with their tokens. ids: of the pieces among the items."""
        if not items:
            return
        self.n_bytes += sum(item.n_bytes for item in items if isinstance(item, Piece))
        encoded, border_ids = iter(ids), _border_ids(tokenizer, self.render)
        parts = [border_ids[item] if isinstance(item, Border) else next(encoded) for item in items]
        lengths = [len(part) for part in parts]
        is_end = [item is Border.END for item in items]
        self.ends.append(self.writer.n_tokens + np.cumsum(lengths)[is_end])
        self.writer.append(_joined_tokens(parts))
        if self.counted is not None:
            self.counted.append(_joined_marks(items, parts, tokenizer.eos_id))

    def close(self, *, together: int = 0) -> Index:
        """Close the writers. together: number of documents in an example; the ends of documents are
        saved then.
        """
        if self.counted is not None:
            self.counted.close(n_bytes=0, n_documents=0)
        n_documents = sum(map(len, self.ends))
        index = self.writer.close(n_bytes=self.n_bytes, n_documents=n_documents)
        if not together:
            return index
        ends = np.concatenate([np.zeros(0, OFFSET), *self.ends])
        return write_examples(self.writer.directory, index, ends, together)


def encode_documents(
    documents: Sequence[Pair | Conversation | Example],
    *,
    tokenizer: Tokenizer,
    render: Renders | None,
) -> list[Tokens]:
    """The tokens of each document or example, borders included, with marks, as in a prepared
    split.
    """
    by_document: list[Items] = [
        [item for _, item in with_borders((piece, False) for piece in pieces([document], 0))]
        for document in documents
    ]
    all_pieces = [item for items in by_document for item in items if isinstance(item, Piece)]
    encoded = iter(_encoded(all_pieces, tokenizer, render, tokenizer.encode_batch))
    border_ids, made = _border_ids(tokenizer, render), []
    for document, items in zip(documents, by_document, strict=True):
        parts = [border_ids[item] if isinstance(item, Border) else next(encoded) for item in items]
        tokens, marks = _joined_tokens(parts), _joined_marks(items, parts, tokenizer.eos_id)
        made.append(Tokens(tokens, marks))
        if isinstance(document, Example):
            ends = np.cumsum([len(part) for part in parts])[[item is Border.END for item in items]]
            made[-1] = Tokens(tokens, marks, tuple(np.diff(ends, prepend=0).tolist()))
    return made


def _encoded(
    pieces: Sequence[Piece], tokenizer: Tokenizer, render: Renders | None, encode: EncodeBatch
) -> Sequence[Encoded]:
    if render is None:
        return encode([piece.text for piece in pieces])
    conversations = [piece.conversation for piece in pieces if piece.conversation is not None]
    assert len(conversations) == len(pieces)
    return render(conversations, tokenizer)


def _border_ids(tokenizer: Tokenizer, render: Renders | None) -> dict[Border, Encoded]:
    """The tokens of each border; none with a template, as templates write their own."""
    borders = {Border.BEGIN: tokenizer.begin_id, Border.END: tokenizer.last_id}
    return {
        border: [] if token is None or render is not None else [token]
        for border, token in borders.items()
    }


def _joined_tokens(parts: Sequence[Encoded]) -> np.ndarray:
    tokens = (part.tokens if isinstance(part, Rendered) else part for part in parts)
    return np.concatenate([np.asarray(part, dtype=np.uint32) for part in tokens])


def _joined_marks(items: Items, parts: Sequence[Encoded], end_of_text: int) -> np.ndarray:
    pairs = zip(items, parts, strict=True)
    return np.concatenate([_marks(item, part, end_of_text) for item, part in pairs])


def _marks(item: Piece | Border, part: Encoded, end_of_text: int) -> np.ndarray:
    """The marks of an item's tokens, bits as in forge.data.tokens.store."""
    liked = LIKED if isinstance(item, Piece) and item.liked else 0
    if not isinstance(part, Rendered):
        counts = item is Border.END or (isinstance(item, Piece) and item.counted)
        return np.full(len(part), (COUNTS if counts else 0) | liked, dtype=np.uint8)
    inside = part.tokens == end_of_text
    marks = np.where(part.counted, COUNTS, 0) | np.where(inside, GOES_ON, 0)
    marks[-1] = (marks[-1] & COUNTS) | ENDS
    return (marks | liked).astype(np.uint8)


def encode_splits(
    split: Split, tokenizer: Tokenizer, directory: Path, *, on_bytes: Callable[[int], None]
) -> dict[str, Index]:
    """Write directory/train and directory/val; at most a few MiB of text are in memory.

    Every document begins and ends in each split with a piece of the document. on_bytes is called
    with the bytes read so far.
    """
    corpus = split.corpus
    options: Any = {"vocab_size": tokenizer.vocab_size, "masked": corpus.masked}
    sides = [SplitWriter.open(directory / name, **options, render=corpus.render) for name in SPLITS]
    waiting = done = 0
    for is_validation, item in with_borders(split.pieces()):
        sides[is_validation].pending.append(item)
        waiting += item.n_bytes if isinstance(item, Piece) else 0
        if waiting >= BATCH_BYTES:
            done, waiting = done + waiting, 0
            for side in sides:
                side.flush(tokenizer)
            on_bytes(done)
    for side in sides:
        side.flush(tokenizer)
    on_bytes(done + waiting)
    together = split.corpus.together
    return {name: side.close(together=together) for name, side in zip(SPLITS, sides, strict=True)}


def with_borders(
    pieces: Iterable[tuple[Piece, bool]],
) -> Iterator[tuple[bool, Piece | Border]]:
    """Yield (whether validation, piece or border) for pieces in order: a document begins and ends
    in every split with a piece of the document.
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


def split_facts(folder: Path, indices: Mapping[str, Index]) -> dict[str, dict[str, Any]]:
    """The counts and the hash of each split in a folder, for a manifest."""
    return {
        name: {
            "documents": index.n_documents,
            "bytes": index.n_bytes,
            "tokens": index.n_tokens,
            "sha256": IndexedStore(folder / name).fingerprint,
        }
        for name, index in indices.items()
    }
