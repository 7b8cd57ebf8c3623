"""Held-out documents of a stream, cached as tokens: some of its first, chosen by their hash, or
those of its last files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from forge.data.batches.streams import DIGEST_BYTES, StreamDocument, digest_of, n_bytes_of
from forge.data.sources.hub_stream import StreamSource
from forge.data.text.fingerprint import hash_file, hash_json
from forge.data.text.split import HASH_RANGE
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.cache import explained, read_or_make
from forge.data.tokens.manifest import read_manifest, write_manifest
from forge.data.tokens.shards import (
    COUNTED,
    DOCUMENTS,
    FORMAT,
    INDEX_FILE,
    IndexedStore,
    ShardWriter,
    write_examples,
)

STORE, DIGESTS = "val", "held_out.bin"
TOGETHER = 1000  # documents tokenised in one call
Kept = tuple[IndexedStore, frozenset[bytes], dict[str, Any]]
"""The tokens of the documents, their digests, and a manifest."""


def hold_out(
    source: StreamSource, tokenizer: Tokenizer, root: Path, progress: Callable[[str, float], None]
) -> Kept:
    """The held-out documents, from the cache or made now. ValueError: no text, or too little to
    divide.
    """
    section = source.section
    identity: dict[str, Any] = {
        "format": FORMAT,
        "stream": source.fingerprint,
        "from_first": section.val_from_first,
        "held_out": section.held_out.identity,
        "tokenizer": tokenizer.fingerprint,
    }
    if source.render is not None:
        identity["template"] = source.render.source(tokenizer)
    entry = root / "data" / f"stream-{hash_json(identity)[:16]}"
    with explained(root):

        def make(directory: Path) -> None:
            progress("hold out the validation split", 0.0)
            _make(directory, source, tokenizer, identity)

        return read_or_make(entry, partial(_open, entry), make)


def _open(entry: Path) -> Kept:
    manifest, store = read_manifest(entry), IndexedStore(entry / STORE)
    store.verify()
    content = (entry / DIGESTS).read_bytes()
    starts = range(0, len(content), DIGEST_BYTES)
    digests = (content[start : start + DIGEST_BYTES] for start in starts)
    return store, frozenset(digests), manifest


def _make(
    directory: Path, source: StreamSource, tokenizer: Tokenizer, identity: dict[str, Any]
) -> None:
    """Write the held-out documents, and the digests by which training leaves them out."""
    if source.held:
        left_out, looked_at = [], 0
        files = _encode(directory, source, tokenizer, source.held_documents())
    else:
        held, left_out, looked_at = _chosen(source)
        files = _encode(directory, source, tokenizer, iter(held))
    (directory / DIGESTS).write_bytes(b"".join(left_out))
    manifest = {
        "identity": identity,
        "looked_at": looked_at,
        "sha256": {name: hash_file(directory / name) for name in [*files, DIGESTS]},
    }
    write_manifest(directory, manifest)


def _chosen(source: StreamSource) -> tuple[list[StreamDocument], list[bytes], int]:
    """(documents to hold out, their digests, number of documents looked at): divided as
    `split_corpus` does, but among the first documents only, without cutting.
    """
    texts = [*source.first(source.section.val_from_first)]
    if not texts:
        raise ValueError(f"data: there is no text in {source.source}. Give some to train on.")
    digests = [digest_of(text) for text in texts]
    threshold = _threshold(source, digests)
    below = [int.from_bytes(digest, "little") < threshold for digest in digests]
    held = [text for text, is_held in zip(texts, below, strict=True) if is_held]
    left_out = sorted({digest for digest, is_held in zip(digests, below, strict=True) if is_held})
    return held, left_out, len(texts)


def _encode(
    directory: Path,
    source: StreamSource,
    tokenizer: Tokenizer,
    documents: Iterator[StreamDocument],
) -> list[str]:
    """Write documents as a store of tokens, a batch in memory at a time. Returns its files."""
    streamed = source.tokens(tokenizer, frozenset())
    writer = ShardWriter(directory / STORE, vocab_size=tokenizer.vocab_size)
    counted = ShardWriter(directory / STORE / COUNTED, dtype="u1") if streamed.masked else None
    lengths: list[int] = []
    n_documents = n_bytes = 0
    while batch := list(islice(documents, TOGETHER)):
        n_documents, n_bytes = n_documents + len(batch), n_bytes + sum(map(n_bytes_of, batch))
        for document in streamed.encoded(batch):
            writer.append(document.tokens)
            lengths += document.lengths
            if counted is not None and document.marks is not None:
                counted.append(document.marks)
    if counted is not None:
        counted.close(n_bytes=0, n_documents=0)
    index = writer.close(n_bytes=n_bytes, n_documents=len(lengths) or n_documents)
    if streamed.together:
        write_examples(directory / STORE, index, np.cumsum(lengths), streamed.together)
    files = [f"{STORE}/{INDEX_FILE}"]
    files += [f"{STORE}/{COUNTED}/{INDEX_FILE}"] if counted is not None else []
    return files + ([f"{STORE}/{DOCUMENTS}"] if streamed.together else [])


def _threshold(source: StreamSource, digests: Sequence[bytes]) -> int:
    """The value of a digest below which a document is held out; some documents are on each side.

    Raises ValueError for too few documents.
    """
    held_out = source.section.held_out
    values = sorted({int.from_bytes(digest, "little") for digest in digests})
    if len(values) == 1:
        fault = f"{source.source} has one document, too little to hold some out for validation"
        hint = "Give more text; or other text to validate on, data.validation"
        raise ValueError(f"data: {fault}. {hint}.")
    if (number := held_out.documents) >= len(values):
        fault = f"the first {len(digests):,} have {len(values):,} different ones, and some must be "
        hint = "Hold out fewer, or look at more with data.val_from_first"
        raise ValueError(f"data.val_documents = {number}: {fault}left to train on. {hint}.")
    boundary = values[number] if number else round(held_out.share * HASH_RANGE)
    return min(max(boundary, values[0] + 1), values[-1])
