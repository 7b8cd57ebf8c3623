"""A divided corpus in parts, each of which is tokenised by itself, in any order and process."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from forge.data.encode import (
    BATCH_BYTES,
    OFFSET,
    SPLITS,
    Border,
    Items,
    Side,
    with_borders,
)
from forge.data.reading import Document, Pair
from forge.data.split import Piece, Split, pieces
from forge.data.tokenizer import Tokenizer
from forge.rundir.files import sync

TOKENIZER, DOCUMENTS = "tokenizer", "documents.i64"


@dataclass(kw_only=True)
class Tally:
    """What was read, and what was left out of it and why."""

    documents: int = 0
    empty: int = 0
    duplicates: int = 0
    duplicate_bytes: int = 0
    files_without_text: int = 0


@dataclass(kw_only=True)
class Part:
    """Pieces of either split in order, and where documents begin and end."""

    number: int
    items: dict[str, Items] = field(default_factory=lambda: {name: [] for name in SPLITS})
    n_bytes: int = 0


def parts_of(split: Split, *, part_bytes: int, deduplicate: bool, tally: Tally) -> Iterator[Part]:
    """The corpus in parts of about part_bytes of text: the same ones every time.

    deduplicate: leave out a document whose text came before; it takes about 120 bytes of memory a
    document, and each is in memory as a whole.
    """
    part = Part(number=0)
    pieces = ((each, each.digest < split.threshold) for each in _pieces(split, deduplicate, tally))
    for is_validation, item in with_borders(pieces):
        if part.n_bytes >= part_bytes and item is not Border.END:
            yield part
            part = Part(number=part.number + 1)
        part.items[SPLITS[is_validation]].append(item)
        part.n_bytes += item.n_bytes if isinstance(item, Piece) else 0
    if any(part.items.values()):
        yield part


def _pieces(split: Split, deduplicate: bool, tally: Tally) -> Iterator[Piece]:
    known: set[bytes] = set()
    for path in split.corpus.files:
        before = tally.documents - tally.empty
        for document in split.corpus.read(path):
            tally.documents += 1
            found = _of_document(document, split.unit)
            if deduplicate:
                found = list(found)
                digest = hashlib.blake2b(digest_size=16)
                for piece in found:
                    digest.update(piece.text.encode() + (b"" if piece.counted else b"\0"))
                if found and digest.digest() in known:
                    tally.duplicates += 1
                    tally.duplicate_bytes += sum(piece.n_bytes for piece in found)
                    continue
                known.add(digest.digest())
            empty = True
            for piece in found:
                empty = False
                yield piece
            tally.empty += empty
        tally.files_without_text += tally.documents - tally.empty == before


def _of_document(document: Document, unit: int) -> Iterator[Piece]:
    if isinstance(document, Pair) and not (document.prompt or document.response):
        return iter(())
    return pieces([document], unit)


def encode_part(part: Part, folder: Path, *, masked: bool) -> int:
    """Tokenise a part to folder/NUMBER, which is there once all of it is. Returns its tokens.

    folder/tokenizer has the tokenizer.
    """
    tokenizer = _tokenizer(folder / TOKENIZER)
    scratch = folder / f".{part.number:05d}"
    shutil.rmtree(scratch, ignore_errors=True)
    n_tokens = 0
    for name, items in part.items.items():
        side = Side.open(scratch / name, vocab_size=tokenizer.vocab_size, masked=masked)
        waiting = 0
        for item in items:
            side.pending.append(item)
            waiting += item.n_bytes if isinstance(item, Piece) else 0
            if waiting >= BATCH_BYTES:
                side.flush(tokenizer)
                waiting = 0
        side.flush(tokenizer)
        n_tokens += side.close().n_tokens
        ends = np.concatenate([*side.ends, np.zeros(0, OFFSET)])
        ends.astype(OFFSET).tofile(scratch / name / DOCUMENTS)
    for path in scratch.rglob("*"):
        sync(path)
    scratch.rename(folder / f"{part.number:05d}")
    return n_tokens


@cache
def _tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)
