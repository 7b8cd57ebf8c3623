"""A divided corpus in parts, each of which is tokenised by itself, in any order and process."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from forge.data.preparing.encode import (
    BATCH_BYTES,
    OFFSET,
    SPLITS,
    Border,
    EncodeBatch,
    Encoded,
    Items,
    SplitWriter,
    with_borders,
)
from forge.data.preparing.minhash import signatures
from forge.data.preparing.repetition import repetitive
from forge.data.text.conversation import Conversation, Rendered, Renders
from forge.data.text.reading import Document, Example, Pair
from forge.data.text.split import Piece, Split, pieces
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.shards import DOCUMENTS
from forge.rundir.files import sync, write_json

TOKENIZER, LEFT_OUT = "tokenizer", "left_out.json"


@dataclass(kw_only=True)
class Tally:
    """Counts of documents read and left out, by reason."""

    documents: int = 0
    empty: int = 0
    duplicates: int = 0
    duplicate_bytes: int = 0
    near_duplicates: int = 0
    near_duplicate_bytes: int = 0
    repetitive: int = 0
    repetitive_bytes: int = 0
    files_without_text: int = 0


@dataclass(kw_only=True)
class Part:
    """Pieces of either split in order, and the borders of documents."""

    number: int
    items: dict[str, Items] = field(default_factory=lambda: {name: [] for name in SPLITS})
    n_bytes: int = 0


def corpus_parts(
    split: Split,
    *,
    part_bytes: int,
    deduplicate: bool,
    tally: Tally,
    near: np.ndarray | None = None,
    whole: bool = False,
) -> Iterator[Part]:
    """The corpus in parts of about part_bytes of text: the same division every time.

    deduplicate: leave out a document equal to an earlier one; takes about 120 bytes of memory a
    document, and holds each document in memory as a whole. near: mask of further documents to leave
    out. whole: no part ends within a document.
    """
    part, within = Part(number=0), False
    document_pieces = _pieces(split, deduplicate, tally, near)
    for is_validation, item in with_borders(document_pieces):
        if part.n_bytes >= part_bytes and item is not Border.END and not (whole and within):
            yield part
            part = Part(number=part.number + 1)
        part.items[SPLITS[is_validation]].append(item)
        if isinstance(item, Piece):
            part.n_bytes += item.n_bytes
            within = not item.last
    if any(part.items.values()):
        yield part


def _pieces(
    split: Split, deduplicate: bool, tally: Tally, near: np.ndarray | None
) -> Iterator[tuple[Piece, bool]]:
    """Yield (piece, whether it is validation) of the documents that are not left out."""
    digests: set[bytes] = set()
    for file, path in enumerate(split.corpus.files):
        documents_before = tally.documents - tally.empty
        for document in split.corpus.read(path):
            number = tally.documents
            tally.documents += 1
            document_pieces = _of_document(document, split.unit)
            if deduplicate:
                document_pieces = list(document_pieces)
                digest = hashlib.blake2b(digest_size=16)
                for piece in document_pieces:
                    conversation = piece.conversation
                    content = piece.text.encode() if conversation is None else conversation.content
                    digest.update(content + b"\0" * (not piece.counted) + b"\1" * piece.liked)
                if document_pieces and digest.digest() in digests:
                    tally.duplicates += 1
                    tally.duplicate_bytes += sum(piece.n_bytes for piece in document_pieces)
                    continue
                digests.add(digest.digest())
            if near is not None and near[number]:
                tally.near_duplicates += 1
                tally.near_duplicate_bytes += sum(piece.n_bytes for piece in document_pieces)
                continue
            empty = True
            for piece in document_pieces:
                empty = False
                yield piece, split.holds_out(piece, file)
            tally.empty += empty
        tally.files_without_text += tally.documents - tally.empty == documents_before


def texts_of(split: Split) -> Iterator[str]:
    """The text of each document, in the order of the corpus."""
    for document in split.corpus.documents():
        assert not isinstance(document, Example)
        if isinstance(document, Conversation):
            yield document.text
        else:
            yield "\n".join(document) if isinstance(document, Pair) else "".join(document)


def _of_document(document: Document, unit: int) -> Iterator[Piece]:
    if isinstance(document, Pair) and not (document.prompt or document.response):
        return iter(())
    return pieces([document], unit)


def encode_part(
    part: Part,
    folder: Path,
    *,
    masked: bool,
    render: Renders | None = None,
    no_repetition: bool = False,
) -> int:
    """Tokenise a part to folder/NUMBER, created once complete. Returns its number of tokens.

    folder/tokenizer has the tokenizer. no_repetition: leave out documents with tokens repeated over
    and over; then all tokens of the part are in memory, and its documents must be whole.
    """
    tokenizer, encode = _tokenizer(folder / TOKENIZER)
    scratch = folder / f".{part.number:05d}"
    shutil.rmtree(scratch, ignore_errors=True)
    n_tokens, left_out = 0, {"repetitive": 0, "repetitive_bytes": 0}
    for name, items in part.items.items():
        size = tokenizer.vocab_size
        side = SplitWriter.open(scratch / name, vocab_size=size, masked=masked, render=render)
        encoded = _encoded_items(side, items, tokenizer, encode, keep=no_repetition)
        if no_repetition:
            remaining, ids, count, size = without_repetition(items, encoded)
            side.write(remaining, ids, tokenizer)
            left_out["repetitive"] += count
            left_out["repetitive_bytes"] += size
        n_tokens += side.close().n_tokens
        ends = np.concatenate([*side.ends, np.zeros(0, OFFSET)])
        ends.astype(OFFSET).tofile(scratch / name / DOCUMENTS)
    write_json(scratch / LEFT_OUT, left_out)
    for path in scratch.rglob("*"):
        sync(path)
    scratch.rename(folder / f"{part.number:05d}")
    return n_tokens


def _encoded_items(
    side: SplitWriter,
    items: Items,
    tokenizer: Tokenizer,
    encode: EncodeBatch,
    *,
    keep: bool,
) -> list[Encoded]:
    """Encode the items of a split in batches; keep: as in `_encoded`."""
    encoded: list[Encoded] = []
    waiting = 0
    for item in items:
        side.pending.append(item)
        waiting += item.n_bytes if isinstance(item, Piece) else 0
        if waiting >= BATCH_BYTES:
            encoded += _encoded(side, tokenizer, encode, keep=keep)
            waiting = 0
    return encoded + _encoded(side, tokenizer, encode, keep=keep)


def _encoded(
    side: SplitWriter, tokenizer: Tokenizer, encode: EncodeBatch, *, keep: bool
) -> list[Encoded]:
    """The tokens of the pending items; none where flushed to disk (keep=False)."""
    if not keep:
        side.flush(tokenizer, encode)
        return []
    encoded = side.encoded(tokenizer, encode)
    packed = (
        item if isinstance(item, Rendered) else np.asarray(item, np.uint32) for item in encoded
    )
    return list(packed)


def without_repetition(items: Items, ids: list[Encoded]) -> tuple[Items, list[Encoded], int, int]:
    """The remaining items and the tokens of their pieces, with the numbers of documents and bytes
    left out.
    """
    pieces = [item for item in items if isinstance(item, Piece)]
    document = np.cumsum([item is Border.BEGIN for item in items]) - 1  # of each item
    whose = document[[isinstance(item, Piece) for item in items]]
    if not pieces:
        return items, ids, 0, 0
    lengths = np.bincount(
        whose, weights=[len(piece_ids) for piece_ids in ids], minlength=document[-1] + 1
    )
    tokens = [encoded.tokens if isinstance(encoded, Rendered) else encoded for encoded in ids]
    bad = repetitive(np.concatenate(tokens), np.cumsum(lengths.astype(np.int64)))
    kept_items = [item for item, number in zip(items, document, strict=True) if not bad[number]]
    kept_ids = [piece_ids for piece_ids, number in zip(ids, whose, strict=True) if not bad[number]]
    size = sum(piece.n_bytes for piece, number in zip(pieces, whose, strict=True) if bad[number])
    return kept_items, kept_ids, int(bad.sum()), size


def sign(texts: list[str], number: int, folder: Path) -> int:
    """Save signatures of documents to folder/NUMBER.npy, created once complete."""
    scratch = folder / f".{number:05d}.npy"
    np.save(scratch, signatures(texts))
    sync(scratch)
    scratch.rename(folder / f"{number:05d}.npy")
    return 0


@cache
def _tokenizer(directory: Path) -> tuple[Tokenizer, EncodeBatch]:
    tokenizer = Tokenizer.load(directory)
    return tokenizer, (tokenizer.remember_words() or tokenizer).encode_batch
