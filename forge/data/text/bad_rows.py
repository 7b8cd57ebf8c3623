"""Rows that cannot be read: the first is refused, or so many are left out and counted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.config.data.text import Rows
from forge.data.text.reading import SHOWN, BadFile, readable

OF_FILE = (OSError, EOFError, MemoryError, zlib.error)
"""What ends the reading of a file, and says nothing of a row."""


@dataclass(kw_only=True)
class BadRows:
    """What becomes of them in one corpus, which is read more than once and has the same ones every
    time. most: so many may be left out; None = the first is refused. counts: of each file that was
    read. said: what is wrong with the first ones of these files.
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
        return [what for said in self.said.values() for what in said][:SHOWN]

    @contextmanager
    def row(self, where: object) -> Iterator[None]:
        """Leave out what reads a row. BadFile: it cannot be read and is refused. ValueError, naming
        data.max_bad_rows: it is one too many.
        """
        try:
            with readable(where):
                yield
        except BadFile as error:
            if self.most is None or isinstance(error.__cause__, OF_FILE):
                raise
            self._leave_out(error)

    def begin(self, path: Path) -> None:
        """A file is read from its beginning; each row that is left out from here on is of it."""
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
        """What prepared data says of them; nothing where all rows were read."""
        number, first = self.number, self.first
        return {"bad_rows": {"number": number, "first": first}} if number else {}


REFUSED = BadRows()
"""Of readers that are told nothing."""


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
    """What is said of the rows that each text of prepared data lacks. name: of the text."""
    if bad := manifest.get("bad_rows"):
        rows = "1 row" if bad["number"] == 1 else f"{bad['number']:,} rows"
        whose = f" of {name}" if name else ""
        more = "; ..." if bad["number"] > 3 else ""
        what = f"{rows}{whose} cannot be read, and left out: {'; '.join(bad['first'][:3])}{more}"
        yield f"data: {what}   (data.on_bad_row=skip)"
    for entries in ("sources", "eval_sets"):
        for inner, one in manifest.get(entries, {}).items():
            yield from left_out(one, inner)
    if "validation" in manifest:
        yield from left_out(manifest["validation"], "data.validation")
