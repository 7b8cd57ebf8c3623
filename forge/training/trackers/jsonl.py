"""Metrics as JSON lines."""

from __future__ import annotations

import json
import time
from pathlib import Path


class JsonLines:
    """One line a log, flushed at once: {"step": ..., "time": seconds since 1970, **values}.

    Appends to what is there. NaN and infinities are written as Python's json writes and reads them.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
