"""Completions of a run's rollouts with their rewards, as tables of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.report.html import details, html_section, html_table
from forge.report.table import Table
from forge.rundir.rollouts import read_lines, rollout_numbers, rollout_path, table_rows

GROUPS = 4  # prompts of a rollout in a table
SHOWN = 3  # rollouts beside the last one, from the first on
NOTE = "The first prompts of the last rollout; rollouts/ of the run directory has all."


def completions(run_dir: Path) -> str:
    """Tables of the first completions of some rollouts, the last one open; empty without any."""
    numbers = rollout_numbers(run_dir)
    if not numbers:
        return ""
    last, earlier = numbers[-1], numbers[:-1]
    distance = max(len(earlier) // SHOWN, 1)
    body = _table(run_dir, last)
    for number in reversed(earlier[::distance][:SHOWN]):
        if table := _table(run_dir, number):
            body += details(f"rollout {number}", table)
    return html_section(body, name="completions", note=NOTE) if body else ""


def _table(run_dir: Path, number: int) -> str:
    content = read_lines(rollout_path(run_dir, number))
    if content is None:
        return ""
    lines = [line for line in content[1] if line.get("prompt") in _first_prompts(content[1])]
    rows = table_rows(lines)
    if not rows:
        return ""
    heads = tuple(rows[0])
    cells = [tuple(_text(row.get(name)) for name in heads) for row in rows]
    align = "".join("<" if name in ("prompt", "completion", "finish") else ">" for name in heads)
    name, title = f"rollout_{number}", f"rollout {number}"
    return html_table(Table(name=name, title=title, heads=heads, lines=cells, align=align))


def _first_prompts(lines: list[dict[str, Any]]) -> list[Any]:
    return list(dict.fromkeys(line.get("prompt") for line in lines))[:GROUPS]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
