"""The tables of a report on a terminal."""

from __future__ import annotations

import os
import re
import sys

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge.cli import printable
from forge.report.comparison import Report
from forge.report.tables import Table, headline, tables

PIPED, MOST = 120, 30


def show(report: Report, console: Console, most: int = MOST) -> None:
    """Print the headline and every table with at most so many lines, without blanks at the ends of
    lines.
    """
    with console.capture() as captured:
        _print(report, console, most)
    console.file.write(re.sub(r" +(?=\n)", "", captured.get()))


def width() -> int | None:
    """The columns to print in: those of the terminal, else COLUMNS, else 120. None: as rich finds
    them.
    """
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED


def _print(report: Report, console: Console, most: int) -> None:
    console.print(Text(printable(report.source.name), style="bold"))
    for line in headline(report):
        console.print(Text(printable(line)))
    console.print()
    for table in tables(report, most):
        console.print(_rich(table))
        for note in table.notes:
            console.print(Text(printable(note), style="dim"))
        if table.notes:
            console.print()


def _rich(table: Table) -> RichTable:
    shown = RichTable(
        title=Text(printable(table.title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, head in enumerate(table.heads):
        right = table.side(i) == "right"
        shown.add_column(
            Text(printable(head)),
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
        )
    for cells in table.lines:
        shown.add_row(*(Text(printable(cell)) for cell in cells))
    return shown
