"""The parts of a self-contained page: no network, no other file."""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from forge.cli import printable
from forge.report.table import Table

DIGITS = 7
UNITS = {
    "loss": "nats a token",
    "bits_per_byte": "bits a byte",
    "tokens_per_second": "tokens a second",
    "step_seconds": "seconds a step",
    "memory_gib": "GiB",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">\
<meta http-equiv="Content-Security-Policy" content="{policy}">\
<meta name="color-scheme" content="light dark"><title>{title}</title>\
<link rel="icon" href="data:,"><style>{css}</style></head>
<body><main>
<header><h1>{title}</h1>{header}</header>
{sections}
<footer>made {time} by python -m forge.{verb}</footer>
</main>
<script type="application/json" id="data">{data}</script>
<script>{js}</script>
</body></html>
"""
EMPTY: Mapping[str, Any] = {}
NO_SCRIPT = "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"


def escape(text: str) -> str:
    """A text without HTML, and without characters that change the reading order."""
    return html.escape(printable(text))


def document(
    title: str,
    *,
    header: str,
    sections: Sequence[str],
    data: Mapping[str, Any],
    script: str,
    verb: str = "report",
) -> str:
    """The HTML document. header, sections: HTML. data: source of the script's figures."""
    return PAGE.format(
        verb=verb,
        policy=POLICY,
        title=escape(title),
        css=_asset("page.css"),
        header=header,
        sections="\n".join(sections),
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        # a < would end the script element
        data=json.dumps(_printable(data), allow_nan=False, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
        js=_asset("figures.js") + _asset(script),
    )


def html_section(body: str, *, name: str = "", title: str = "", note: str = "") -> str:
    """An HTML section. title, note: HTML."""
    attribute = f' id="{name}"' if name else ""
    heading = f"<h2>{title}</h2>" if title else ""
    below = f'<p class="note">{note}</p>' if note else ""
    return f"<section{attribute}>{heading}{body}{below}</section>"


def html_table(
    given: Table, links: Mapping[str, str] = EMPTY, arms: Mapping[str, int] = EMPTY
) -> str:
    """The HTML of a table.

    links: by text of the first column. arms: arm indices by the same text.
    """
    sides = ["right" if given.is_right(i) else "left" for i in range(len(given.heads))]
    columns = list(zip(sides, map(escape, given.heads), strict=True))
    heads = "".join(f'<th scope="col" class="{side}">{head}</th>' for side, head in columns)
    lines = ""
    for first, *texts in given.lines:
        name = escape(first)
        name = f'<a href="{escape(links[first])}">{name}</a>' if first in links else name
        cells = "".join(
            f'<td class="{side}" data-head="{head}">{_parts(cell)}</td>'
            for (side, head), cell in zip(columns[1:], texts, strict=True)
        )
        arm = f' data-arm="{arms[first]}"' if first in arms else ""
        lines += f'<tr{arm}><th scope="row">{name}</th>{cells}</tr>'
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in given.notes)
    title = f"<h2>{escape(given.title)}</h2>" if given.title else ""
    body = f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody>"
    return f'{title}<table id="table-{given.name}">{body}</table>{notes}'


def details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>{body}</details>"


def rounded(value: float | None, digits: int = DIGITS) -> float | int | None:
    """The value with `digits` digits; None if not finite; whole numbers without a point."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def unit(metric: str) -> str:
    return UNITS.get(metric.rpartition("/")[2], "")


def _printable(data: Any) -> Any:
    """A copy of the data with `printable` texts."""
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, Mapping):
        return {_printable(key): _printable(value) for key, value in data.items()}
    return [_printable(item) for item in data] if isinstance(data, list | tuple) else data


def _parts(cell: str) -> str:
    """The parts of a list, each without a line break if the width allows."""
    parts = [escape(part) for part in cell.split("; ")]
    several = " ".join(f'<span class="part">{part}</span>' for part in parts)
    return several if len(parts) > 1 else parts[0]


def _asset(name: str) -> str:
    return (files("forge.report") / name).read_text(encoding="utf-8")
