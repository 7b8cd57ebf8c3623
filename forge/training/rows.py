"""The files of JSON lines in a run directory, which a run that goes on continues where its
checkpoint left them.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

METRICS, PERFORMANCE, SAMPLES = "metrics.jsonl", "performance.jsonl", "samples.jsonl"
ROW_FILES = (METRICS, PERFORMANCE, SAMPLES)


class Rows:
    """Appends strict JSON objects, one a line, each handed to the operating system at once: a
    killed process loses none.

    A last line that was not finished is cut when the file is opened. Raises OSError with a message
    that says what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
            self._size = _whole_lines(self._file)
            self._file.truncate(self._size)
        except OSError as error:
            raise _unwritable(path, error) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one object of numbers and strings. NaN and infinities, which JSON does not know,
        become null.
        """
        plain = {name: _plain(value) for name, value in row.items()}
        # A lone surrogate, as an argument that is no UTF-8 brings, becomes the escape that JSON has
        # for it.
        line = (
            json.dumps(plain, ensure_ascii=False, allow_nan=False).encode(
                "utf-8", errors="backslashreplace"
            )
            + b"\n"
        )
        try:
            _write_all(self._file, line)
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._size)
            raise _unwritable(self.path, error) from error
        self._size += len(line)

    def close(self) -> None:
        self._file.close()


def lengths(run_dir: Path) -> dict[str, int]:
    """Bytes of each file of rows that is there, all of them on the disk: what a checkpoint records
    of them.
    """
    found = {}
    for path in (run_dir / name for name in ROW_FILES):
        if path.exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                found[path.name] = os.fstat(file.fileno()).st_size
    return found


def cut(run_dir: Path, recorded: Mapping[str, int]) -> None:
    """Cut each file of rows to its length at the checkpoint that a run goes on from, one that is
    not named there to nothing.

    A file that is shorter has lost rows, as a power cut may do; it is left as it is, with a
    warning.
    """
    for path in (run_dir / name for name in ROW_FILES):
        size, kept = path.stat().st_size if path.exists() else 0, recorded.get(path.name, 0)
        if size < kept:
            log.warning(
                "%s has %d bytes, %d less than at the checkpoint: rows before it are lost",
                path,
                size,
                kept - size,
            )
        elif size > kept:
            os.truncate(path, kept)


def _whole_lines(file: Any) -> int:
    """Bytes up to the end of the last finished line."""
    size = file.seek(0, os.SEEK_END)
    block = 1 << 16
    for end in range(size, 0, -block):
        start = max(end - block, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
    return 0


def _write_all(file: Any, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def _unwritable(path: Path, error: OSError) -> OSError:
    fix = "make room or give access, then go on with this run: nothing is lost up to its last checkpoint"
    return OSError(f"{path} cannot be written: {error.strerror or error}; {fix}")
