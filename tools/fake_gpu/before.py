"""Findings of an earlier state beside the cases that show them mended, as a section of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BEFORE = Path(__file__).with_name("before.json")
"""Figures before the mends. commit: of the page that has them; source: of a row from elsewhere.
finding: which ones a case shows. was: its name then, where it had another one.
"""
TITLE = "Before and after"
COLUMNS = {
    "launches": ("launches", 1),
    "copied": ("copies, GB", 2),
    "waits": ("waits", 3),
    "retries": ("retries", 10),
    "allocated": ("allocated", 4),
    "reserved": ("reserved", 7),
    "ratio": ("estimate / allocated", 6),
}
"""Head of a figure, and its column in the page's table of cases."""
WHOLE = ("launches", "waits", "retries")
OTHER_DEVICE = "other_device"


def section(rows: Mapping[str, str], bounds: Mapping[str, Mapping[str, float]]) -> str:
    """The section of the page. rows: lines of its table by name of the case."""
    before = json.loads(BEFORE.read_text())
    heads = ["finding", "case", *(head for head, _ in COLUMNS.values()), "calls on another device"]
    lines = [
        f"## {TITLE}\n",
        "Before, then after: step 2 of 3 on the fake GPU, GiB at its peak. The figures before are",
        f"those of this page at `{before['commit']}`, where a row names no other source, kept in",
        "`tools/fake_gpu/before.json`; those after are the rows above. Where a cell has one",
        "figure, there is none before.",
        "",
        *(f"- {name}: {text}" for name, text in before["findings"].items()),
        "",
        f"| {' | '.join(heads)} | |",
        f"| --- | --- |{' ---: |' * (len(heads) - 2)} --- |",
        *(line(row, rows[row["case"]], bounds) for row in before["rows"] if row["case"] in rows),
    ]
    return "\n".join(lines) + "\n"


def line(row: Mapping[str, Any], after: str, bounds: Mapping[str, Mapping[str, float]]) -> str:
    """A case before and after; after: its line in the table of cases."""
    measured = [cell.strip() for cell in after.strip("|").split("|")]
    name = f"{row['was']} → {row['case']}" if "was" in row else row["case"]
    cells = [row["finding"], name]
    for key, (_, column) in COLUMNS.items():
        cells.append(_change(row.get(key), measured[column], whole=key in WHOLE))
    calls = row.get(OTHER_DEVICE)
    now = bounds.get(row["case"], {}).get(OTHER_DEVICE, 0)
    cells.append(f"{calls} → {now:g}" if calls is not None else "")
    return f"| {' | '.join([*cells, '; '.join(_notes(row))])} |"


def _change(old: float | None, new: str, *, whole: bool) -> str:
    if old is None:
        return new
    return f"{old:,} → {new}" if whole else f"{old:,.2f} → {new}"


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    if "source" in row:
        yield f"before: at `{row['source']}`"
    if "note" in row:
        yield row["note"]


def sections_of(page: str) -> list[str]:
    """The page from one second heading to the next; the first part is what stands before them."""
    head, *others = page.split("\n## ")
    return [head, *(f"## {other}" for other in others)]
