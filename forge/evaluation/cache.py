"""Scores and texts of earlier evaluations of the same weights, found by the hash of a request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class Cache:
    """Answers by key, kept in a file of JSON lines; None = in memory alone.

    A line torn by a kill is skipped. Written by the main rank; a rank without the file has `known`
    from the main rank.
    """

    def __init__(self, path: Path | None, known: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.known: dict[str, Any] = dict(known or {})
        if path is not None and path.is_file():
            with path.open("rb") as file:
                for line in file:
                    with suppress(ValueError, TypeError, KeyError):
                        row = json.loads(line)
                        self.known[row["key"]] = row["value"]

    def add(self, answers: Iterable[tuple[str, Any]]) -> None:
        """Add answers, in memory and at the end of the file."""
        rows = dict(answers)
        self.known |= rows
        if self.path is None or not rows:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps({"key": key, "value": value}) for key, value in rows.items())
        torn = _torn(self.path)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + "".join(f"{line}\n" for line in lines))


def _torn(path: Path) -> bool:
    """Whether a file ends within a line."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
