"""The tables of a report as Markdown."""

from __future__ import annotations

from forge.report.comparison import Report
from forge.report.tables import Table, headline, tables

MOST = 50


def markdown(report: Report, most: int = MOST) -> str:
    """The headline and every table with at most so many lines, as a page."""
    parts = [f"# {_plain(report.source.name)}", " ".join(map(_plain, headline(report)))]
    for table in tables(report, most):
        parts += [f"## {_plain(table.title)}", _table(table), *map(_plain, table.notes)]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rule = ["---:" if table.side(i) == "right" else "---" for i in range(len(table.heads))]
    return "\n".join(
        _line(cells)
        for cells in (
            [_plain(head) for head in table.heads],
            rule,
            *([_plain(c) for c in cells] for cells in table.lines),
        )
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """A text in which nothing is Markdown or HTML."""
    for sign in "\\`*_[]|<>#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
