"""Plans of packing in the cache: made once for a text and its options, then mapped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from forge.config.data.text import BUFFERED
from forge.data.batches.packing import COUNTED, Plan, buffered_parts, plan_samples
from forge.data.text.fingerprint import hash_file, hash_json
from forge.data.tokens.cache import explained, read_or_make
from forge.data.tokens.manifest import read_manifest, write_manifest
from forge.data.tokens.shards import INDEX_FILE, IndexedStore, ShardWriter
from forge.data.tokens.store import TokenStore

FORMAT = 2  # version of plans of the same text and options
ARRAYS = {"pieces": (-1, 2), "begins": (-1,)}
"""Arrays of a plan and their shapes."""


class KeptPlan(Plan):
    """A plan with its arrays mapped from files; pickles as their folder."""

    def __init__(self, entry: Path) -> None:
        """BrokenStore: the plan's files are damaged."""
        too_long = read_manifest(entry)["too_long"]
        arrays = {name: _mapped(entry / name).reshape(shape) for name, shape in ARRAYS.items()}
        super().__init__(**arrays, **too_long)
        object.__setattr__(self, "entry", entry)

    def __reduce__(self) -> tuple[type[KeptPlan], tuple[Path]]:
        return KeptPlan, (self.entry,)  # type: ignore[attr-defined]


def kept_plan(
    root: Path,
    store: TokenStore,
    *,
    announce: Callable[[str], object] = lambda stage: None,
    **how: Any,
) -> KeptPlan:
    """The result of `packing.plan_samples` for a store, from the cache below root or made now.

    Any number of processes may call this at once: one makes the plan. ValueError, naming
    data.cache_dir: the cache cannot be written.
    """
    identity = {"format": FORMAT, "text": store.stamp, **how}
    entry = root / "plans" / hash_json(identity)[:16]

    def make(directory: Path) -> None:
        announce("plan which documents share a sequence")
        counts = _write(directory, store, how)
        files = {
            f"{name}/{INDEX_FILE}": hash_file(directory / name / INDEX_FILE) for name in ARRAYS
        }
        content = {"identity": identity, "too_long": counts, "sha256": files}
        write_manifest(directory, content)

    with explained(root):
        return read_or_make(entry, partial(KeptPlan, entry), make)


def _write(directory: Path, store: TokenStore, how: dict[str, Any]) -> dict[str, int]:
    """Write the arrays of a plan, part by part, and return its counts."""
    is_buffered = how["policy"] in BUFFERED
    parts = buffered_parts(store, **how) if is_buffered else iter([plan_samples(store, **how)])
    options: Any = {"dtype": "<i8", "shard_tokens": sys.maxsize}
    writers = {name: ShardWriter(directory / name, **options) for name in ARRAYS}
    counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
    n_pieces = 0
    writers["begins"].append(np.zeros(1, np.int64))
    for part in parts:
        writers["pieces"].append(part.pieces.reshape(-1))
        writers["begins"].append(part.begins[1:] + n_pieces)
        n_pieces += len(part.pieces)
        counts = {name: number + getattr(part, name) for name, number in counts.items()}
    for writer in writers.values():
        writer.close(n_bytes=0, n_documents=0)
    return counts


def _mapped(directory: Path) -> np.ndarray:
    store = IndexedStore(directory)
    store.verify()
    return store.parts[0] if store.parts else np.zeros(0, "<i8")
