"""The tables of a report on a terminal, as Markdown, and its rows as CSV."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge.cli import printable
from forge.report.comparison import Report
from forge.report.table import Table
from forge.report.tables import headline, tables

ON_TERMINAL, IN_MARKDOWN, PIPED_WIDTH = 30, 50, 120


def print_report(report: Report, console: Console | None = None, most: int = ON_TERMINAL) -> None:
    """Print the headline and every table with at most `most` lines."""
    print_tables(report.source.name, headline(report), tables(report, most), console)


def print_tables(
    title: str, lines: Sequence[str], given: Sequence[Table], console: Console | None = None
) -> None:
    """Print a title, sentences and tables, without trailing blanks.

    The width is the terminal's, else COLUMNS, else 120.
    """
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    console = console or Console(force_jupyter=False, width=None if has_width else PIPED_WIDTH)
    with console.capture() as captured:
        console.print(Text(printable(title), style="bold"))
        for line in lines:
            console.print(Text(printable(line)))
        console.print()
        for table in given:
            console.print(_rich(table))
            for note in table.notes:
                console.print(Text(printable(note), style="dim"))
            if table.notes:
                console.print()
    console.file.write(re.sub(r" +(?=\n)", "", captured.get()))


def markdown(report: Report, most: int = IN_MARKDOWN) -> str:
    return markdown_text(report.source.name, headline(report), tables(report, most))


def markdown_text(title: str, lines: Sequence[str], given: Sequence[Table]) -> str:
    """A title, sentences and tables as Markdown."""
    parts = [f"# {_escaped(title)}", " ".join(map(_escaped, lines))]
    for table in given:
        heads, *rows = ([_escaped(cell) for cell in line] for line in (table.heads, *table.lines))
        rule = ["---:" if table.is_right(i) else "---" for i in range(len(heads))]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))
        parts += [f"## {_escaped(table.title)}", text, *map(_escaped, table.notes)]
    return "\n\n".join(parts) + "\n"


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rich(table: Table) -> RichTable:
    title = Text(printable(table.title))
    result = RichTable(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, head in enumerate(table.heads):
        right = table.is_right(i)
        justify = "right" if right else "left"
        result.add_column(Text(printable(head)), justify=justify, no_wrap=right, overflow="fold")
    for cells in table.lines:
        result.add_row(*(Text(printable(cell)) for cell in cells))
    return result


def _escaped(text: str) -> str:
    """A text without Markdown or HTML."""
    return " ".join(re.sub(r"([\\`*_\[\]|<>#])", r"\\\1", printable(text)).split())
