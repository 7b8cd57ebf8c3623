"""A table of text, the same on a terminal, in Markdown and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, a line of heads, lines of cells, and explaining sentences. name: for links.

    align: < or > for each column.
    """

    name: str
    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    align: str

    @property
    def of_runs(self) -> bool:
        return self.heads[0] == "run"

    def is_right(self, column: int) -> bool:
        return self.align[column] == ">"


def enumerated(names: Sequence[str]) -> str:
    """The names with commas and a last 'and'."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
