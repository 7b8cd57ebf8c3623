"""A hash of what a corpus says, fast for small ones and remembered for large ones."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forge.config.regular import open_regular
from forge.data.text.reading import UNPACKED, kind, readable

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
    """Hash of the contents of `files` in their order and of how they are read, in hex.

    From 64 MiB on `memo`, a directory, keeps it by every file's path, size and time of change.
    """
    found = [(path, path.stat()) for path in files]
    stats = [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in found]
    if memo is None or sum(size for _, size, _ in stats) < MEMO_FROM_BYTES:
        return _hash_contents(files, reader)
    known = memo / hash_json([reader, stats])
    if known.is_file():
        return known.read_text()
    started = time.time_ns()
    result = _hash_contents(files, reader)
    # A file that changes within the resolution of its time stamp would look unchanged.
    if started - max(changed for _, _, changed in stats) > SETTLED_SECONDS * 1e9:
        with suppress(OSError):  # a cache that may only be read
            memo.mkdir(parents=True, exist_ok=True)
            fresh = known.with_name(f"{known.name}.{os.getpid()}")
            fresh.write_text(result)
            fresh.rename(known)
    return result


def _hash_contents(files: Sequence[Path], reader: str) -> str:
    contents = [(kind(path), _packing(path), _hash_readable(path)) for path in files]
    return hash_json([reader, contents])


def _hash_readable(path: Path) -> str:
    with readable(path):
        return hash_file(path)


def _packing(path: Path) -> bool | str:
    """How a file is packed; gzip is True, as it was when it was the only way."""
    return path.suffix == ".gz" or (path.suffix if path.suffix in UNPACKED else False)
