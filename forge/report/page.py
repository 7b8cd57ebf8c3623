"""A report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
import os
import time
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forge.config.numbers import counted
from forge.report.comparison import Report
from forge.report.page_data import page_data
from forge.report.tables import Table, headline, runs_table, tables

MOST, RUNS = 50, 1000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
CURVES = """<section id="curves"><h2>learning curves</h2>
<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>
<div class="controls"></div><div class="plots">{}</div><div class="legend"></div>
<p class="note">{}</p></section>"""
ARM_PLOT = """<section><h2>{}</h2><figure id="arm-plot"></figure>
<p class="note">{}</p></section>"""
SMALL_DOTS, ONE_DOT = (
    "Small dots: runs. Large: mean with its 95&nbsp;% interval.",
    "A dot an arm: its run.",
)
SIGNS = """ Beside it: the difference to the baseline with its own. <b class="better">●</b> better, <b class="worse">●</b> worse than the
baseline at 5&nbsp;%{}, <b class="same">○</b> not told apart, <b>◆</b> baseline."""
MEANS = "Mean over the seeds of an arm; the band goes from the lowest to the highest of them, as far as all of them have come."
ONE_LINE = "A line a run."


def page(report: Report, place: Path, most: int = MOST) -> str:
    """The page; `place` is the directory that it will lie in, for the links to runs. most: arms in
    figures and tables.
    """
    data = page_data(report, most)
    runs = runs_table(report, RUNS)
    links = {report.label(run): _link(run.path, place) for run in report.runs}
    title = escape(report.source.name)
    parts = [
        f"<header><h1>{title}</h1>{''.join(f'<p>{escape(line)}</p>' for line in headline(report))}{_commands(report)}</header>",
        _arm_plot(report, most),
        _curves(data, report),
        *(
            f"<section>{_table(table, links if table.of_runs or not report.source.path else {})}</section>"
            for table in tables(report, most)
        ),
        f"<section><details><summary>{counted(len(report.runs), 'run')}</summary>{_table(runs, links)}</details></section>",
        f"<footer>made {time.strftime('%Y-%m-%d %H:%M:%S')} by python -m forge.report</footer>",
    ]
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="color-scheme" content="light dark">',
        f'<title>{title}</title><link rel="icon" href="data:,"><style>{_asset("page.css")}</style>',
    ]
    script = f'<script type="application/json" id="data">{_json(data)}</script>\n<script>{_asset("page.js")}</script>'
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n<body><main>\n{body}\n</main>\n{script}\n</body></html>\n'


def _arm_plot(report: Report, most: int) -> str:
    shown, every = report.shown(most), report.others if report.compared else report.rows
    best = f"best {most:,} of {len(every):,} arms"
    of = (
        "every arm"
        if len(shown) == len(report.rows)
        else f"the baseline and the {best}"
        if report.compared
        else f"the {best}"
    )
    several = any(row.summary and row.summary.n > 1 for row in shown)
    tests = sum(row.p_holm is not None for row in report.rows)
    signs = (
        SIGNS.format(" after Holm" if tests > 1 else "")
        if any(row.difference for row in shown)
        else ""
    )
    order = " The best is the first." if len(shown) > 1 and not report.compared else ""
    return ARM_PLOT.format(
        escape(f"{report.metric} of {of}"), f"{SMALL_DOTS if several else ONE_DOT}{signs}{order}"
    )


def _curves(data: dict[str, Any], report: Report) -> str:
    if not data["curves"]:
        return ""
    kinds = ["plain", *(["apart"] if any(any(curve["apart"]) for curve in data["curves"]) else [])]
    every = [one for curve in data["curves"] for one in curve["plain"] if one]
    said = [MEANS if any(one["n"] > 1 for one in every) else ONE_LINE]
    said += ["Dashed: no run of the arm is done."] if not all(one["done"] for one in every) else []
    said += ["An arm is shown or hidden by its name."]
    said += (
        [
            "A difference is between runs of the same seed; where none is common, to the mean of the baseline."
        ]
        if "apart" in kinds
        else []
    )
    said += ["Time is of training."]
    return CURVES.format(
        "".join(f'<figure data-kind="{kind}"></figure>' for kind in kinds), " ".join(said)
    )


def _table(table: Table, links: dict[str, str]) -> str:
    heads = "".join(
        f'<th scope="col" class="{table.side(i)}">{escape(head)}</th>'
        for i, head in enumerate(table.heads)
    )
    lines = "".join(f"<tr>{_cells(table, line, links)}</tr>" for line in table.lines)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    return f'{title}<table id="table-{table.name}"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{notes}'


def _cells(table: Table, line: tuple[str, ...], links: dict[str, str]) -> str:
    first, *rest = line
    name = (
        f'<a href="{escape(links[first])}">{escape(first)}</a>' if first in links else escape(first)
    )
    cells = [
        f'<td class="{table.side(i)}" data-head="{escape(head)}">{_parts(cell)}</td>'
        for i, (head, cell) in enumerate(zip(table.heads[1:], rest, strict=True), 1)
    ]
    return f'<th scope="row">{name}</th>{"".join(cells)}'


def _parts(cell: str) -> str:
    """Parts of a list each unbroken where there is room."""
    parts = cell.split("; ")
    return (
        escape(cell)
        if len(parts) == 1
        else " ".join(f'<span class="part">{escape(part)}</span>' for part in parts)
    )


def _commands(report: Report) -> str:
    if not report.source.commands:
        return ""
    lines = "\n".join(
        f"python -m forge.train {escape(command)}" for command in report.source.commands
    )
    return f"<details><summary>{counted(len(report.source.commands), 'command')}</summary><pre>{lines}</pre></details>"


def _link(run: Path, place: Path) -> str:
    return quote(os.path.relpath(run, place.resolve())) + "/"


def _json(data: object) -> str:
    """JSON that ends no script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("forge.report") / name).read_text(encoding="utf-8")
