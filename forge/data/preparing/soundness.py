"""Check of a directory made by forge.prepare against its manifest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from forge.data.preparing.encode import OFFSET, SPLITS
from forge.data.preparing.parts import TOKENIZER
from forge.data.preparing.shard_folder import Progress
from forge.data.text.fingerprint import hash_file
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.manifest import read_manifest
from forge.data.tokens.shards import COUNTED, BrokenStore, IndexedStore


def find_damage(
    out: Path, *, progress: Progress = lambda stage, done, total, tokens: None
) -> list[str]:
    """List all faults of a directory made by forge.prepare, reading every byte."""
    try:
        manifest = read_manifest(out)
        tokenizer = Tokenizer.load(out / TOKENIZER)
    except BrokenStore as error:
        return [str(error)]
    if "read" not in manifest:
        return ["it was not made by forge.prepare"]
    faults = []
    sizes = {name: split["tokens"] for name, split in manifest["splits"].items()}
    for name in SPLITS:
        try:
            store = IndexedStore(out / name)
        except BrokenStore as error:
            faults.append(str(error))
            continue
        faults += [f"{name}: {fault}" for fault in _faults(store, manifest, tokenizer)]
        progress("validate", sizes[name], sum(sizes.values()), sizes[name])
    return faults


def _faults(store: IndexedStore, manifest: dict[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    name, index = store.directory.name, store.index
    stated = manifest["splits"][name]
    if index.tokenizer not in ("", manifest["tokenizer"]["fingerprint"]):
        yield "its index names another tokenizer than the manifest"
    borders, start = [np.zeros(0, OFFSET)], 0
    for checked in filter(None, (store, store.counted)):
        for shard in checked.index.shards:
            if hash_file(checked.directory / shard.file) != shard.sha256:
                yield f"{shard.file} does not have the content that was written"
    for shard, tokens in zip(index.shards, store.parts, strict=True):
        if (greatest := int(tokens.max())) >= tokenizer.vocab_size:
            yield f"{shard.file} has the token {greatest} of {tokenizer.vocab_size} ids"
        # No text spells the border tokens: each occurrence is a border of documents.
        borders.append(np.flatnonzero(tokens == tokenizer.end_id) + start)
        start += len(tokens)
    if store.counted is not None and len(store.counted) != len(store):
        yield f"{COUNTED} is of another length"
    if start != stated["tokens"]:
        yield f"{start:,} tokens, and the manifest has {stated['tokens']:,}"
    if index.documents:
        offsets = np.fromfile(store.directory / index.documents, OFFSET)
        positions = np.concatenate(borders)
        expected = [0, *(positions + 1)] if tokenizer.add_eos else [*positions, start]
        if not np.array_equal(offsets, expected):
            yield f"{index.documents} does not have the places where documents end"
