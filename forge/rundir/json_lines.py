"""Files of one JSON object a line, which only ever grow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge.config.problems import ConfigError, Problem
from forge.rundir.stored import parsed, read_text

LARGEST = 2**32
"""Bytes of a file that is read whole: more than a long run logs."""


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line in one write; where a kill left the last one unfinished, it begins on a new one."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, ("\n" * torn + json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines, oldest first; one that a kill left unfinished is left out, and an absent file has
    none. Raises ConfigError.
    """
    try:
        return list(parsed(read_text(path, most=LARGEST, errors="replace").splitlines()))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        what = f"it cannot be read: {getattr(error, 'strerror', None) or error}."
        raise ConfigError([Problem(key=str(path), what=what, fix="move it away")]) from None
