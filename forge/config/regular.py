"""Readers of regular files alone: a pipe would block the reader for ever, a device has no end."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

TOO_DEEP = "its JSON is nested too deep"
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(OSError):
    """A path that is a FIFO, a socket or a device."""

    def __init__(self, path: str | Path, mode: int) -> None:
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        message = f"it is {kind}, and only regular files are opened"
        super().__init__(errno.EINVAL, message, str(path))
        self.mode = mode

    def __reduce__(self) -> tuple[type[NotRegular], tuple[str, int]]:
        return NotRegular, (str(self.filename), self.mode)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a file for its bytes. Raises OSError, NotRegular at once for a path that may block."""
    check_regular(path)  # before opening: some devices act upon an open
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor).st_mode)  # the path may have been replaced since
        os.set_blocking(descriptor, True)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: str | Path) -> None:
    """Raise OSError where a path is no regular file, for a reader with its own open."""
    _check(path, os.stat(path).st_mode)


def _check(path: str | Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotRegular(path, mode)


def read_bytes(path: str | Path) -> bytes:
    """Read a file's bytes. Raises OSError."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: str | Path, errors: str = "strict") -> str:
    """Read text in UTF-8, with `\\n` at the end of lines. Raises OSError and UnicodeDecodeError."""
    with io.TextIOWrapper(open_regular(path), encoding="utf-8", errors=errors) as file:
        return file.read()


def read_json(path: str | Path) -> Any:
    """Read JSON. Raises OSError and ValueError."""
    return parse_json(read_bytes(path))


def parse_json(content: str | bytes) -> Any:
    """Parse JSON. Raises ValueError."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
