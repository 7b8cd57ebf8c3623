"""The tables of a report on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge.analysis.comparison import Report
from forge.analysis.tables import Table, headline, tables


def show(report: Report, console: Console) -> None:
    """Print the headline and every table."""
    console.print(Text(report.source.name, style="bold"))
    for line in headline(report):
        console.print(Text(line))
    console.print()
    for table in tables(report):
        console.print(_rich(table))
        for note in table.notes:
            console.print(Text(note, style="dim"))
        if table.notes:
            console.print()


def _rich(table: Table) -> RichTable:
    shown = RichTable(
        title=Text(table.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for i, head in enumerate(table.heads):
        right = table.side(i) == "right"
        shown.add_column(Text(head), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for cells in table.lines:
        shown.add_row(*map(Text, cells))
    return shown
