"""The page of one run: its curves, samples, config and provenance in one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.config.numbers import byte_size, counted, time_span
from forge.config.problems import shown
from forge.launch.sweep.state import RUNNING
from forge.report.completions import completions
from forge.report.drawing import POINTS, thinned, track_of
from forge.report.html import NO_SCRIPT, details, document, escape, html_section, html_table, unit
from forge.report.inventory import Entry, find_runs
from forge.report.runs import Run
from forge.report.table import Table
from forge.rundir import evaluations, outcome, versions
from forge.rundir.directory import MADE_WITH, own_overrides, short
from forge.rundir.files import read_object, read_rows
from forge.rundir.progress import SAMPLES
from forge.rundir.wall_clock.goodput import MEANINGS, read_goodput

FIGURES = {
    "loss": lambda name: (
        name == "train/loss" or (name.startswith("eval/") and name.endswith("/loss"))
    ),
    "learning rate": lambda name: name == "lr" or name.startswith("lr/"),
    "gradient norm": lambda name: name == "train/grad_norm",
    "throughput": lambda name: name == "tokens_per_second",
}
"""The metrics of each figure; an additional figure draws any metric."""
LATEST, LONGEST = 8, 4000  # samples, and letters of one
NOTE = "Time is of training. Long curves are thinned out: neighbours are averaged."


def page_of_run(entry: Entry) -> str:
    run = entry.run
    data = _page_data(run)
    sections = [_figures(data), _tasks(run.path), _samples(run.path), completions(run.path)]
    sections += [_metrics(run), _goodput(run), _config(run), _origin(run.path)]
    lines = "".join(f"<p>{escape(line)}</p>" for line in run_summary(entry))
    return document(
        run.path.name,
        header=lines,
        sections=[part for part in sections if part],
        data=data,
        script="run.js",
    )


def write_page(run_dir: Path) -> Path:
    """Write the page of a run to RUN/report/index.html. Raises OSError."""
    (entry,), _ = find_runs([run_dir])
    path = run_dir / "report" / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_of_run(entry), encoding="utf-8")
    return path


def run_summary(entry: Entry) -> list[str]:
    """Sentences: progress, best value, reason of a failure, tags and note."""
    run, now, notes = entry.run, entry.progress, entry.annotations
    end = "" if now.of is None else f" of {now.of:,}"
    tokens = "" if run.log.tokens is None else f", {run.log.tokens:,} tokens"
    time = "" if run.log.seconds is None else f", {time_span(run.log.seconds)} of training"
    lines = [f"{run.state}: step {now.step:,}{end}{tokens}{time}, {byte_size(entry.extent.size)}."]
    if run.why:
        lines.append(f"Why it failed: {run.why}")
    if entry.best is not None:
        value, step = entry.best
        last = run.log.curve(str(run.objective)).values
        at_end = f", {last[-1]:.5g} at the end" if len(last) else ""
        lines.append(f"Best {run.objective}: {value:.5g} at step {step:,}{at_end}.")
    for task, found in evaluations.latest(run.path).items():
        if (main := evaluations.headline(found)) is not None:
            name, value, error = main
            shown = "" if error is None else f" ± {error:.4f}"
            step, count = found["step"], found.get("items", 0)
            lines.append(
                f"Task {task} at step {step:,}: {name} {value:.4f}{shown}, {count:,} items."
            )
    if notes.tags:
        lines.append(f"Tags: {' '.join(notes.tags)}")
    return [*lines, notes.note] if notes.note else lines


def _page_data(run: Run) -> dict[str, Any]:
    """The data of the figures: every metric, with each shared array of steps stored once."""
    grids: dict[tuple[float | None, ...], int] = {}
    curves = []
    for metric in run.log.metrics:
        curve = run.log.curve(metric)
        if len(curve.steps):
            steps = tuple(thinned(curve.steps, POINTS))
            grid = grids.setdefault(steps, len(grids))
            values = thinned(curve.values, POINTS)
            curves.append({"metric": metric, "unit": unit(metric), "grid": grid, "mean": values})
    names = [curve["metric"] for curve in curves]
    figures = [
        {"title": title, "curves": [i for i, name in enumerate(names) if belongs(name)]}
        for title, belongs in FIGURES.items()
    ]
    return {
        "curves": curves,
        "grids": [list(steps) for steps in grids],
        "tracks": [track_of([run.log.track()])],
        "figures": [figure for figure in figures if figure["curves"]],
    }


def _figures(data: Mapping[str, Any]) -> str:
    if not data["curves"]:
        return html_section("<p>Nothing has been logged yet.</p>")
    figures = "".join(
        f'<div><h3>{figure["title"]}</h3><figure data-figure="{i}"></figure></div>'
        for i, figure in enumerate(data["figures"])
    )
    figures += '<div><h3>any metric</h3><div class="controls" id="any"></div>'
    figures += '<figure data-figure="any"></figure></div>'
    body = f'{NO_SCRIPT}<div class="controls" id="all"></div><div class="plots">{figures}</div>'
    return html_section(body, name="curves", note=NOTE)


def _samples(run_dir: Path) -> str:
    rows = [row for row in read_rows(run_dir / SAMPLES) if isinstance(row.get("text"), str)]
    if not rows:
        return ""
    parts = []
    for row in reversed(rows[-LATEST:]):
        prompt, text = escape(str(row.get("prompt", ""))), escape(row["text"][:LONGEST])
        content = f"<b>{prompt}</b>{text}"
        parts.append(f"<p>step {escape(str(row.get('step')))}</p><pre>{content}</pre>")
    first, *earlier = parts
    folded = (
        details(counted(len(earlier), "sample") + " before it", "".join(earlier)) if earlier else ""
    )
    return html_section(first + folded, title="samples", note="In bold: the prompt.")


def _tasks(run_dir: Path) -> str:
    """A table of every metric of each task's last evaluation, with its standard error."""
    lines = []
    for task, summary in evaluations.latest(run_dir).items():
        for name, metric in summary["metrics"].items():
            value, error = metric.get("value"), metric.get("stderr")
            if isinstance(value, int | float):
                shown = f"{error:.4f}" if isinstance(error, int | float) else ""
                number = f"{metric.get('n', 0):,}"
                given = (f"{value:.4f}", shown, evaluations.interval_text(metric), number)
                lines.append((task, name, *given, f"{summary['step']:,}"))
    heads = ("task", "metric", "value", "std. error", "95 % interval", "items", "step")
    result = Table(name="tasks", title="tasks", heads=heads, lines=lines, align="<<>>>>>")
    return html_section(html_table(result)) if lines else ""


def _goodput(run: Run) -> str:
    """A table of the wall clock since the submission, by name."""
    spent = read_goodput(run.path, running=run.state == RUNNING)
    if spent is None:
        return ""
    lines = [
        (name.replace("_", " "), f"{seconds:,.1f}", f"{seconds / spent.wall:.1%}", MEANINGS[name])
        for name, seconds in spent.seconds.items()
    ]
    heads = ("name", "seconds", "share", "what it is")
    result = Table(
        name="goodput", title="where the time went", heads=heads, lines=lines, align="<>><"
    )
    return html_section(html_table(result), note=f"{spent.words()}.")


def _metrics(run: Run) -> str:
    """A table of the last, lowest and highest value of every metric."""
    lines = []
    for name in run.log.metrics:
        curve = run.log.curve(name)
        if len(curve.values):
            ends = (curve.values[-1], curve.values.min(), curve.values.max())
            lines.append((name, *(f"{value:,.6g}" for value in ends), f"{curve.steps[-1]:,.0f}"))
    heads = ("metric", "last", "lowest", "highest", "last step")
    result = Table(name="metrics", title="metrics", heads=heads, lines=lines, align="<>>>>")
    return html_section(html_table(result)) if lines else ""


def _config(run: Run) -> str:
    """The typed command, the derived values, and all options."""
    typed, derived = [], []
    with suppress(OSError, ValueError, TypeError):
        typed = own_overrides(run.path)
    with suppress(OSError, ValueError, TypeError, KeyError):
        derived = [
            (str(option["key"]), shown(option["value"]), str(option["why"]))
            for option in versions.read_config_part(
                run.path, "derived", versions.number_in_force(run.path)
            )
        ]
    command = escape(shlex.join(["python", "-m", "forge.train", *typed]))
    parts = [f"<pre>{command}</pre>"]
    if derived:
        heads = ("option", "value", "why")
        listing = Table(name="derived", title="", heads=heads, lines=derived, align="<<<")
        parts.append(details(f"{counted(len(derived), 'value')} worked out", html_table(listing)))
    options = [(key, text) for key, text in run.texts.items()]
    listing = Table(name="config", title="", heads=("option", "value"), lines=options, align="<<")
    parts.append(details(f"all {counted(len(options), 'option')}", html_table(listing)))
    return html_section("".join(parts), title="config")


def _origin(run_dir: Path) -> str:
    """The provenance of a run, its starts and ends, and the warnings of its check."""
    facts: Mapping[str, Any] = {}
    warnings: Sequence[Mapping[str, Any]] = ()
    with suppress(OSError, ValueError):
        facts = read_object(run_dir / MADE_WITH)
    with suppress(OSError, ValueError, TypeError):
        content = versions.read_config_part(run_dir, "warnings", versions.number_in_force(run_dir))
        warnings = [warning for warning in content if isinstance(warning, Mapping)]
    lines = []
    for key, value in {"directory": short(run_dir), **facts}.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {version}" for name, version in value.items() if version)
        text = shlex.join(map(str, value)) if isinstance(value, list) else str(value or "none")
        lines.append((key.replace("_", " "), text))
    provenance = Table(name="made", title="provenance", heads=("", ""), lines=lines, align="<<")
    starts = [_attempt(row) for row in outcome.attempts(run_dir)]
    heads = ("what", "time", "step", "")
    tried = Table(name="attempts", title="", heads=heads, lines=starts, align="<<><")
    parts = [
        html_table(provenance),
        details(counted(len(starts), "start or end", "starts and ends"), html_table(tried)),
    ]
    if warnings:
        texts = "".join(f"<p>{escape(str(warning.get('what')))}</p>" for warning in warnings)
        parts.append(details(counted(len(warnings), "warning"), texts))
    return html_section("".join(parts))


def _attempt(row: Mapping[str, Any]) -> tuple[str, ...]:
    where = f"{row.get('host', '')}, process {row.get('pid', '')}, from {row.get('from')}"
    detail = where if row.get("event") == "start" else f"{row.get('status')}: {row.get('reason')}"
    step = "" if row.get("step") is None else str(row["step"])
    return str(row.get("event")), str(row.get("time", "")), step, detail
