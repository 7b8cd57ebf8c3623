"""Files of one JSON object a line, which only ever grow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge.config.stored import parsed


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
    """All lines, oldest first; one that a kill left unfinished is left out, and an absent file has none."""
    try:
        return list(parsed(path.read_text(encoding="utf-8", errors="replace").splitlines()))
    except FileNotFoundError:
        return []
