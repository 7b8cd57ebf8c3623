"""A report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from forge.config.numbers import counted
from forge.report.comparison import Report, Row
from forge.report.frames import arm_row
from forge.report.grouping import Arm
from forge.report.logs import Curve
from forge.report.runs import Run
from forge.report.tables import Table, headline, runs_table, tables, verdict

MOST, RUNS = 50, 1000  # arms in figures and tables, runs in the list of all
POINTS, FEWEST, ALL = 300, 60, 15_000
"""Points of a curve: at most POINTS, fewer where all curves together would have more than ALL, but
at least FEWEST.
"""
DIGITS = 7
DRAWN = ("mean", "low", "high", "difference", "difference_low", "difference_high")
UNITS = {
    "loss": "nats a token",
    "bits_per_byte": "bits a byte",
    "tokens_per_second": "tokens a second",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">\
<meta http-equiv="Content-Security-Policy" content="{policy}">\
<meta name="color-scheme" content="light dark"><title>{title}</title>\
<link rel="icon" href="data:,"><style>{css}</style></head>
<body><main>
<header><h1>{title}</h1>{headline}{commands}</header>
{sections}
<footer>made {time} by python -m forge.report</footer>
</main>
<script type="application/json" id="data">{data}</script>
<script>{js}</script>
</body></html>
"""
CURVES = """<section id="curves"><h2>learning curves</h2>
<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>
<div class="controls"></div><div class="plots">{}</div><div class="legend"></div>
<p class="note">{}</p></section>"""
ARM_PLOT = """<section><h2>{}</h2><figure id="arm-plot"></figure>
<p class="note">{}</p></section>"""
DOTS = {
    True: "Small dots: runs. Large: mean with its 95&nbsp;% interval.",
    False: "A dot an arm: its run.",
}
SIGNS = """ Beside it: the difference to the baseline with its own. \
<b class="better">●</b> better, <b class="worse">●</b> worse than the
baseline at 5&nbsp;%{}, <b class="same">○</b> not told apart, <b>◆</b> baseline."""
BANDS = {
    True: "Mean over the seeds of an arm; the band goes from the lowest to the highest of them, as "
    "far as all of them have come.",
    False: "A line a run.",
}
DIFFERENCES = (
    "A difference is between runs of the same seed; where none is common, to the mean of the "
    "baseline."
)


def page(report: Report, folder: Path, most: int = MOST) -> str:
    """folder: the one it will lie in, for links to runs. most: arms in figures and tables."""
    data, runs = page_data(report, most), runs_table(report, RUNS)
    links = {
        report.label(run): quote(os.path.relpath(run.path, folder.resolve())) + "/"
        for run in report.runs
    }
    sections = [_arm_plot(report, most), *([_curves(data)] if data["curves"] else [])]
    for table in tables(report, most):
        linked = table.of_runs or not report.source.path
        sections.append(f"<section>{_table(table, links if linked else {})}</section>")
    every = _details(counted(len(report.runs), "run"), _table(runs, links))
    typed = [f"python -m forge.train {escape(command)}" for command in report.source.commands]
    listed = "<pre>{}</pre>".format("\n".join(typed))
    return PAGE.format(
        policy=POLICY,
        title=escape(report.source.name),
        css=_asset("page.css"),
        headline="".join(f"<p>{escape(line)}</p>" for line in headline(report)),
        commands=_details(counted(len(typed), "command"), listed) if typed else "",
        sections="\n".join([*sections, f"<section>{every}</section>"]),
        time=time.strftime("%Y-%m-%d %H:%M:%S"),
        # a < would end the script element
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        js=_asset("page.js"),
    )


def _arm_plot(report: Report, most: int) -> str:
    shown, every = report.shown(most), report.others if report.compared else report.rows
    which = f"the {'baseline and the ' * report.compared}best {most:,} of {len(every):,} arms"
    which = "every arm" if len(shown) == len(report.rows) else which
    tests = sum(row.p_holm is not None for row in report.rows)
    note = DOTS[any(row.summary.n > 1 for row in shown)]
    if any(row.difference.method for row in shown):
        note += SIGNS.format(" after Holm" if tests > 1 else "")
    if len(shown) > 1 and not report.compared:
        note += " The best is the first."
    return ARM_PLOT.format(escape(f"{report.metric} of {which}"), note)


def _curves(data: dict[str, Any]) -> str:
    drawn = [one for curve in data["curves"] for one in curve["values"] if one]
    figures, notes = '<figure data-kind="values"></figure>', [BANDS[any(c["n"] > 1 for c in drawn)]]
    if not all(one["done"] for one in drawn):
        notes.append("Dashed: no run of the arm is done.")
    notes.append("An arm is shown or hidden by its name.")
    if any(any(curve["differences"]) for curve in data["curves"]):
        figures += '<figure data-kind="differences"></figure>'
        notes.append(DIFFERENCES)
    return CURVES.format(figures, " ".join([*notes, "Time is of training."]))


def _table(table: Table, links: dict[str, str]) -> str:
    sides = ["right" if table.is_right(i) else "left" for i in range(len(table.heads))]
    columns = list(zip(sides, map(escape, table.heads), strict=True))
    heads = "".join(f'<th scope="col" class="{side}">{head}</th>' for side, head in columns)
    lines = ""
    for first, *rest in table.lines:
        name = escape(first)
        name = f'<a href="{escape(links[first])}">{name}</a>' if first in links else name
        cells = "".join(
            f'<td class="{side}" data-head="{head}">{_parts(cell)}</td>'
            for (side, head), cell in zip(columns[1:], rest, strict=True)
        )
        lines += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    body = f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody>"
    return f'{title}<table id="table-{table.name}">{body}</table>{notes}'


def _parts(cell: str) -> str:
    """The parts of a list, each unbroken where there is room."""
    parts = [escape(part) for part in cell.split("; ")]
    several = " ".join(f'<span class="part">{part}</span>' for part in parts)
    return several if len(parts) > 1 else parts[0]


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>{body}</details>"


def _asset(name: str) -> str:
    return (files("forge.report") / name).read_text(encoding="utf-8")


def page_data(report: Report, most: int | None = None) -> dict[str, Any]:
    """What the figures are drawn from. baseline: its place among the arms, None where arms are
    ranked. most: arms.
    """
    rows, curves = report.shown(most), []
    points = max(FEWEST, min(POINTS, ALL // len(rows)))
    arms, base = [row.arm for row in rows], report.baseline.arm
    others = [arm for arm in arms if arm is not base and report.compared]
    for metric in dict.fromkeys([report.metric, "train/loss", "eval/loss"]):
        values = [curve(arm, metric, points=points) for arm in arms]
        found = {arm: curve(arm, metric, base, points=points) for arm in others}
        kinds = {"values": values, "differences": [found.get(arm) for arm in arms]}
        if any(one and len(one["step"]) > 1 for one in values):
            curves.append({"metric": metric, "unit": _unit(metric), **kinds})
    return {
        "metric": report.metric,
        "unit": _unit(report.metric),
        "higher": report.higher,
        "baseline": rows.index(report.baseline) if report.compared and report.others else None,
        "arms": [_arm(row, arm_row(row, report), higher=report.higher) for row in rows],
        "curves": curves,
    }


def curve(
    arm: Arm, metric: str, baseline: Arm | None = None, *, points: int = POINTS
) -> dict[str, Any] | None:
    """Mean, lowest and highest over the seeds of an arm; over runs under way where none is done.

    It is taken at the steps of the run that logged least, as far as all of them have come.
    baseline: of the differences to its runs of the same seeds, or to the mean of all of them where
    no seed is common.
    """
    own = _counted_curves(arm, metric)
    lines: list[tuple[Curve, list[Curve]]] = [(one, []) for _, one in own]
    if baseline is not None:
        base = _counted_curves(baseline, metric)
        pairs = [(one, [other]) for seed, one in own for same, other in base if seed == same]
        lines = pairs or [(one, [other for _, other in base]) for _, one in own if base]
    if not lines:
        return None
    every = [curve for one, others in lines for curve in (one, *others)]
    low, high = max(curve.steps[0] for curve in every), min(curve.steps[-1] for curve in every)
    steps = min((one.steps for one, _ in lines), key=len)
    steps = steps[(steps >= low) & (steps <= high)]
    if not len(steps):
        return None

    def at_steps(curves: Sequence[Curve], column: str = "values") -> np.ndarray:
        return np.array([np.interp(steps, one.steps, getattr(one, column)) for one in curves])

    arms = [one for one, _ in lines]
    values = at_steps(arms)
    if baseline is not None:
        values = values - [at_steps(others).mean(axis=0) for _, others in lines]
    columns = {
        "step": steps,
        "tokens": at_steps(arms, "tokens").mean(axis=0),
        "seconds": at_steps(arms, "seconds").mean(axis=0),
        "mean": values.mean(axis=0),
        "low": values.min(axis=0),
        "high": values.max(axis=0),
    }
    thinned = {name: _thinned(column, points) for name, column in columns.items()}
    return {"done": bool(arm.done), "n": len(lines), **thinned}


def _counted_curves(arm: Arm, metric: str) -> list[tuple[int | None, Curve]]:
    """Seed and curve of the runs that are done with a value of the metric, else of all that are
    done, else of those under way.
    """
    runs: Sequence[Run] = [run for run in arm.done if metric in run.final] or arm.done or arm.runs
    found = [(run.seed, run.log.curve(metric)) for run in runs]
    return [(seed, one) for seed, one in found if len(one.steps)]


def _thinned(values: np.ndarray, points: int) -> list[float | None]:
    """At most so many values; of more, neighbours are averaged."""
    if len(values) > points:
        starts = np.arange(points) * len(values) // points
        values = np.add.reduceat(values, starts) / np.diff(starts, append=len(values))
    return [_rounded(value) for value in values.tolist()]


def _arm(row: Row, numbers: dict[str, Any], *, higher: bool) -> dict[str, Any]:
    """numbers: the row of the arm in a CSV file."""
    return {
        "name": row.name,
        "runs_done": len(row.arm.done),
        "values": [_rounded(value) for of_seed in row.values.values() for value in of_seed],
        **{name: _rounded(numbers[name]) for name in DRAWN},
        "verdict": verdict(row, higher),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _unit(metric: str) -> str:
    return UNITS.get(metric.rpartition("/")[2], "")
