"""Bad rows: the first is refused, or a limited number is left out and counted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.config.data.text import Rows
from forge.data.text.reading import SHOWN, BadFile, refuse_unreadable

OF_FILE = (OSError, EOFError, MemoryError, zlib.error)
"""Errors of a file as a whole, never of one row."""


@dataclass(kw_only=True)
class BadRows:
    """Counts and refuses the unreadable rows of one corpus. Every reading of the corpus has the
    same bad rows. most: number allowed to be left out; None = the first is refused. counts: bad
    rows of each file read. said: the faults of the first bad rows of each file.
    """

    most: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    _file: str = ""

    @staticmethod
    def of(section: Rows) -> BadRows:
        skip = section.on_bad_row == "skip"
        return BadRows(most=section.max_bad_rows if skip else None)

    @property
    def number(self) -> int:
        return sum(self.counts.values())

    @property
    def first(self) -> list[str]:
        return [text for texts in self.said.values() for text in texts][:SHOWN]

    @contextmanager
    def row(self, where: object) -> Iterator[None]:
        """Leave out a row on a reading error. BadFile: the row cannot be read and is refused.
        ValueError, naming data.max_bad_rows: one row too many.
        """
        try:
            with refuse_unreadable(where):
                yield
        except BadFile as error:
            if self.most is None or isinstance(error.__cause__, OF_FILE):
                raise
            self._leave_out(error)

    def begin(self, path: Path) -> None:
        """Start a file at its beginning; further rows left out count for this file."""
        if self.most is not None:
            self._file = str(path)
            self.counts[self._file], self.said[self._file] = 0, []

    def _leave_out(self, error: BadFile) -> None:
        self.counts[self._file] += 1
        if len(self.said[self._file]) < SHOWN:
            self.said[self._file].append(error.what)
        if self.number > (self.most or 0):
            raise too_many(self.most or 0, self.number, error.what) from error

    def manifest(self) -> dict[str, Any]:
        """Manifest entry of the rows left out; empty where all rows were read."""
        number, first = self.number, self.first
        return {"bad_rows": {"number": number, "first": first}} if number else {}


REFUSED = BadRows()
"""Default of the readers: the first bad row is an error."""


def too_many(most: int, number: int, what: str) -> ValueError:
    """The error of data with more bad rows than data.max_bad_rows."""
    return ValueError(
        f"data.max_bad_rows = {most}: {number:,} rows cannot be read, of which one is: {what}. "
        "Mend the files, or allow more."
    )


def check_kept(section: Any, manifest: Mapping[str, Any]) -> None:
    """Raises ValueError for data that was prepared when more rows could be left out than now."""
    bad = manifest.get("bad_rows") if isinstance(section, Rows) else None
    if bad and bad["number"] > section.max_bad_rows:
        raise too_many(section.max_bad_rows, bad["number"], bad["first"][0])


def left_out(manifest: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield a warning for each text of prepared data with rows left out. name: of the text."""
    if bad := manifest.get("bad_rows"):
        rows = "1 row" if bad["number"] == 1 else f"{bad['number']:,} rows"
        whose = f" of {name}" if name else ""
        ellipsis = "; ..." if bad["number"] > 3 else ""
        message = (
            f"{rows}{whose} cannot be read, and left out: {'; '.join(bad['first'][:3])}{ellipsis}"
        )
        yield f"data: {message}   (data.on_bad_row=skip)"
    for entries in ("sources", "eval_sets"):
        for inner, entry in manifest.get(entries, {}).items():
            yield from left_out(entry, inner)
    if "validation" in manifest:
        yield from left_out(manifest["validation"], "data.validation")
