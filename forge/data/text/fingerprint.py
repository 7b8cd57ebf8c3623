"""A hash of the content of a corpus, computed fast for a small corpus and cached for a large
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forge.config.regular import open_regular
from forge.data.text.reading import UNPACKED, format_by_suffix, refuse_unreadable

MEMO_FROM_BYTES = 64 << 20
SETTLED_SECONDS = 2.0


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(value: object) -> str:
    """SHA-256 of plain data, in hex; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint(files: Sequence[Path], *, reader: str, memo: Path | None = None) -> str:
    """Hash of the contents of `files` in their order and of their reader, in hex.

    From 64 MiB on `memo`, a directory, caches the hash by path, size and time of change.
    """
    statuses = [(path, path.stat()) for path in files]
    stats = [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in statuses]
    if memo is None or sum(size for _, size, _ in stats) < MEMO_FROM_BYTES:
        return _hash_contents(files, reader)
    remembered = memo / hash_json([reader, stats])
    if remembered.is_file():
        return remembered.read_text()
    started = time.time_ns()
    result = _hash_contents(files, reader)
    # A change within the resolution of the time stamp would go unnoticed.
    if started - max(changed for _, _, changed in stats) > SETTLED_SECONDS * 1e9:
        with suppress(OSError):  # a read-only cache
            memo.mkdir(parents=True, exist_ok=True)
            fresh = remembered.with_name(f"{remembered.name}.{os.getpid()}")
            fresh.write_text(result)
            fresh.rename(remembered)
    return result


def _hash_contents(files: Sequence[Path], reader: str) -> str:
    contents = [(format_by_suffix(path), _packing(path), _hash_readable(path)) for path in files]
    return hash_json([reader, contents])


def _hash_readable(path: Path) -> str:
    with refuse_unreadable(path):
        return hash_file(path)


def _packing(path: Path) -> bool | str:
    """Compression of a file: False for none, True for gzip (kept from the first format), else a
    suffix.
    """
    return path.suffix == ".gz" or (path.suffix if path.suffix in UNPACKED else False)
