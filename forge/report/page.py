"""The page of a sweep, or of runs compared: figures and tables in one HTML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forge.config.numbers import counted
from forge.report import drawing
from forge.report.comparison import Report, Row
from forge.report.frames import arm_row
from forge.report.html import (
    NO_SCRIPT,
    details,
    document,
    escape,
    html_section,
    html_table,
    rounded,
    unit,
)
from forge.report.swept import Swept, value_of_arm
from forge.report.tables import arm_name, headline, runs_table, tables, verdict

MOST, RUNS = 50, 300  # arms in figures and tables, runs in the list of all
DRAWN = ("mean", "low", "high", "difference", "difference_low", "difference_high")
DOTS = {
    True: "Small dots: runs. Large: mean with its 95&nbsp;% interval.",
    False: "A dot an arm: its run.",
}
SIGNS = """ Beside it: the difference to the baseline with its own. ● differs from the baseline at \
5&nbsp;%{}, ○ cannot be told from it, <b>◆</b> baseline."""
COLOUR = " An arm has one colour in all figures; a click on its row shows or hides it."
BANDS = {
    True: "Mean over the seeds of an arm; the band goes from the lowest to the highest of them, as "
    "far as all of them have come.",
    False: "A line a run.",
}
DIFFERENCES = (
    "A difference is between runs of the same seed; where none is common, to the mean of the "
    "baseline."
)
RESPONSE = {
    True: "Large dots: means of arms with their 95&nbsp;% intervals. Small: runs.",
    False: "A dot an arm.",
}
LINES = " A line joins arms that differ in this option alone; its colour and label are {}."
HEAT = " Darker is better, by rank; the best is framed."
PARALLEL = " Below: a line an arm, through what it has of each option, to what it reached."
FIGURE = "<figure {}></figure>"


def report_page(report: Report, folder: Path, most: int = MOST) -> str:
    """The HTML page of a report. folder: of the page, for links to runs.

    most: arms in figures and tables.
    """
    data, runs = page_data(report, most), runs_table(report, RUNS)
    links = {
        report.label(run): quote(os.path.relpath(run.path, folder.resolve())) + "/"
        for run in report.runs
    }
    indices = {arm_name(row, report): i for i, row in enumerate(report.shown(most))}
    sections = [_arm_plot(report, most), *_responses(data), *_curves(data)]
    for result in tables(report, most):
        linked = result.of_runs or not report.source.path
        sections.append(html_section(html_table(result, links if linked else {}, indices)))
    every = details(counted(len(report.runs), "run"), html_table(runs, links))
    typed = [f"python -m forge.train {escape(command)}" for command in report.source.commands]
    listed = "<pre>{}</pre>".format("\n".join(typed))
    lines = "".join(f"<p>{escape(line)}</p>" for line in headline(report))
    return document(
        report.source.name,
        header=lines + (details(counted(len(typed), "command"), listed) if typed else ""),
        sections=[*sections, html_section(every)],
        data=data,
        script="sweep.js",
    )


def page_data(report: Report, most: int | None = None) -> dict[str, Any]:
    """The data of the figures. most: arms.

    baseline: index of the baseline among the arms, None for ranked arms.
    """
    rows, options = report.shown(most), report.options
    return {
        "metric": report.metric,
        "unit": unit(report.metric),
        "higher": report.higher,
        "baseline": rows.index(report.baseline) if report.compared and report.others else None,
        "swept": [asdict(option) for option in options],
        "arms": [_arm(row, report, options) for row in rows],
        **drawing.metric_curves(report, [row.arm for row in rows]),
    }


def _arm(row: Row, report: Report, options: Sequence[Swept]) -> dict[str, Any]:
    numbers = arm_row(row, report)  # the arm's row of the CSV file
    return {
        "name": row.name,
        "runs": len(row.arm.runs),
        "runs_done": len(row.arm.done),
        "values": [rounded(value) for of_seed in row.values.values() for value in of_seed],
        "at": [value_of_arm(row.arm, option.key) for option in options],
        **{name: rounded(numbers[name]) for name in DRAWN},
        "verdict": verdict(row, report.higher),
    }


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
    figure = NO_SCRIPT + FIGURE.format('id="arm-plot"')
    return html_section(figure, title=escape(f"{report.metric} of {which}"), note=note + COLOUR)


def _responses(data: dict[str, Any]) -> list[str]:
    """The figures of the metric over each swept number, and over all swept options."""
    options = data["swept"]
    numbers = [i for i, option in enumerate(options) if option["number"]]
    reached = [arm for arm in data["arms"] if arm["mean"] is not None]
    if not numbers or len(reached) < 2:
        return []
    figures = "".join(FIGURE.format(f'data-option="{i}"') for i in numbers)
    note = RESPONSE[any(len(arm["values"]) > 1 for arm in reached)]
    if len(options) > 1:
        words = [option["word"] for option in options]
        seconds = dict.fromkeys(words[1] if i == 0 else words[0] for i in numbers)
        note += LINES.format(f"the value of {escape(' or '.join(seconds))}")
    if len(options) == 2:
        figures, note = figures + FIGURE.format('id="heat"'), note + HEAT
    body = f'<div class="plots">{figures}</div>'
    if len(options) > 2:
        body, note = body + FIGURE.format('id="parallel"'), note + PARALLEL
    over = options[numbers[0]]["key"] if len(options) == 1 else "what was swept"
    title = escape(f"{data['metric']} over {over}")
    return [html_section(body, name="responses", title=title, note=note)]


def _curves(data: dict[str, Any]) -> list[str]:
    lines = [line for curve in data["curves"] for line in curve["values"] if line]
    if not lines:
        return []
    figures, notes = FIGURE.format('data-kind="values"'), [BANDS[any(c["n"] > 1 for c in lines)]]
    if not all(line["done"] for line in lines):
        notes.append("Dashed: no run of the arm is done.")
    notes.append("An arm is shown or hidden by its name.")
    if any(any(curve.get("differences", ())) for curve in data["curves"]):
        figures += FIGURE.format('data-kind="differences"')
        notes.append(DIFFERENCES)
    if len({"differences" in curve for curve in data["curves"]}) > 1:
        notes.append("Only the metrics that the sweep is about have bands and differences.")
    body = f'<div class="controls"></div><div class="plots">{figures}</div>'
    body += '<div class="legend"></div>'
    note = " ".join([*notes, "Time is of training."])
    return [html_section(body, name="curves", title="learning curves", note=note)]
