"""The page of a study: isoFLOP curves, the fit, its residuals, and the best size of each budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forge.report.html import NO_SCRIPT, document, escape, html_section, html_table, rounded, unit
from forge.scaling.approaches import Approach, parabolas
from forge.scaling.study import Study
from forge.scaling.tables import COUNT_WORDS, headline, tables
from forge.scaling_laws import law

POINTS = 60  # of a drawn line
NOTES = {
    "isoflop": "A colour a budget. Dots: runs. Line: the parabola of approach 2, dashed where it "
    "has no lowest point among the sizes; thin line: the fitted law at that budget; diamond: the "
    "lowest point of the parabola.",
    "fit": "Dots: runs. Line: the lowest loss for each budget by the law, dashed beyond the "
    "largest run, where it is an extrapolation. Bars: 95&nbsp;% intervals; ring: the best use of a "
    "budget; triangles: runs predicted from the others, with the interval for one new run.",
    "residuals": "Measured minus fitted, of each run; a pattern speaks against the law.",
    "best": "Lines: N ~ C^a of each approach, dashed beyond the largest run. Diamonds: the lowest "
    "points of the parabolas.",
}


def scaling_page(study: Study, compared: Sequence[Approach]) -> str:
    """The HTML page of a study."""
    figures = page_figures(study, compared)
    sections = []
    for name, figure in figures.items():
        body = f'<figure data-figure="{name}"></figure>'
        title = escape(figure["title"])
        sections.append(f"<div><h3>{title}</h3>{body}<p class='note'>{NOTES[name]}</p></div>")
    plots = NO_SCRIPT + f'<div class="plots">{"".join(sections)}</div>'
    parts = [html_section(plots, name="figures")]
    parts += [html_section(html_table(table)) for table in tables(study, compared)]
    return document(
        f"scaling of {study.ladder.source.name}",
        header="".join(f"<p>{escape(line)}</p>" for line in headline(study)),
        sections=parts,
        data={"figures": figures},
        script="scaling.js",
        verb="scaling",
    )


def page_figures(study: Study, compared: Sequence[Approach]) -> dict[str, dict[str, Any]]:
    """The data of the figures: axes, and series of points, lines and bars."""
    made = {"isoflop": _isoflop(study)} if study.is_of_size else {}
    made |= {"fit": _fit(study), "residuals": _residuals(study)}
    if study.is_of_size:
        made["best"] = _best(study, compared)
    return {name: figure for name, figure in made.items() if figure["series"]}


def _figure(
    title: str, x: str, y: str, series: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    return {"title": title, "x": x, "y": y, "series": series, **more}


def _series(
    name: str, colour: int, kind: str, x: Any, y: Any, labels: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    points = [[rounded(float(a)), rounded(float(b))] for a, b in zip(x, y, strict=True)]
    return {
        "name": name,
        "colour": colour,
        "kind": kind,
        "points": points,
        "labels": list(labels),
        **more,
    }


def _isoflop(study: Study) -> dict[str, Any]:
    series, sizes, losses = [], study.sizes, study.ladder.losses
    for colour, parabola in enumerate(parabolas(study)):
        runs, name = parabola.runs, f"{parabola.budget:.3g} FLOPs"
        names = [study.ladder.rungs[i].name for i in runs]
        series.append(_series(name, colour, "dots", sizes[runs], losses[runs], names))
        span = np.log(sizes[runs])
        x = np.linspace(span.min() - 0.1, span.max() + 0.1, POINTS)
        y = np.polyval(parabola.coefficients, x)
        dashed = bool(parabola.why)
        series.append(_series("", colour, "line", np.exp(x), y, dashed=dashed))
        tokens = study.flops.tokens(parabola.budget, np.exp(x))
        logs = np.stack([x, np.log(tokens)]) - study.powers.centre[:, None]
        fitted = study.powers.at(logs)[0]
        series.append(_series("", colour, "line", np.exp(x), fitted, thin=True))
        if not parabola.why:
            series.append(_series(name, colour, "diamonds", [parabola.best], [parabola.loss]))
    title = f"{study.ladder.metric} over size at equal FLOPs"
    return _figure(title, _size_title(study), _loss_title(study), series, log_x=True)


def _fit(study: Study) -> dict[str, Any]:
    ladder, compute = study.ladder, study.compute
    names = [rung.name for rung in ladder.rungs]
    series = [_series("runs", 0, "dots", compute, ladder.losses, names)]
    ends = [*compute, *(best.budget for best in study.best)]
    within = np.geomspace(compute.min(), compute.max(), POINTS)
    series.append(_series("law", 1, "line", within, _lowest(study, within)))
    if max(ends) > compute.max():
        beyond = np.geomspace(compute.max(), max(ends), POINTS)
        series.append(
            _series("extrapolated", 1, "line", beyond, _lowest(study, beyond), dashed=True)
        )
    for best in study.best:
        bar = [rounded(end) for end in (best.loss.low, best.loss.high)]
        series.append(
            _series("extrapolated", 1, "bars", [best.budget], [best.loss.value], bars=[bar])
        )
    for held, colour in zip(study.held, (2, 3), strict=False):
        bars = [[rounded(end) for end in (p.low, p.high)] for p in held.predicted]
        places = [rung.compute(study.choice.count, study.choice.compute) for rung in held.rungs]
        labels = [f"{rung.name}, predicted" for rung in held.rungs]
        values = [predicted.value for predicted in held.predicted]
        name = f"{held.name}, predicted"
        series.append(_series(name, colour, "triangles", places, values, labels, bars=bars))
    title = f"{ladder.metric} over compute"
    return _figure(title, "training FLOPs", _loss_title(study), series, log_x=True)


def _residuals(study: Study) -> dict[str, Any]:
    names = [rung.name for rung in study.ladder.rungs]
    residuals = study.ladder.losses - study.fitted
    series = [_series("runs", 0, "dots", study.compute, residuals, names)]
    more = {"log_x": True, "zero": True}
    return _figure("residuals", "training FLOPs", "measured - fitted", series, **more)


def _best(study: Study, compared: Sequence[Approach]) -> dict[str, Any]:
    series = []
    low, high = study.compute.min(), study.compute.max()
    last = max([high, *(best.budget for best in study.best)])
    for colour, approach in enumerate(compared):
        for start, end, dashed in ((low, high, False), (high, last, True)):
            budgets = np.geomspace(start, end, 2)
            if approach.frontier is not None:
                sizes = [approach.frontier.best(float(budget))[0] for budget in budgets]
            elif approach.powers is not None:
                sizes = [law.best_size(approach.powers, c, study.flops)[0] for c in budgets]
            else:
                continue
            name = "" if dashed else approach.name
            series.append(_series(name, colour, "line", budgets, sizes, dashed=dashed))
    good = [parabola for parabola in parabolas(study) if not parabola.why]
    budgets, sizes = [p.budget for p in good], [p.best for p in good]
    series.append(_series("", 2, "diamonds", budgets, sizes))
    title = "best size of each budget"
    return _figure(title, "training FLOPs", _size_title(study), series, log_x=True, log_y=True)


def _lowest(study: Study, budgets: np.ndarray) -> np.ndarray:
    if not study.is_of_size:
        return study.powers.at(np.log(budgets)[None] - study.powers.centre[:, None])[0]
    return np.array([law.least_loss(study.powers, c, study.flops)[0] for c in budgets])


def _size_title(study: Study) -> str:
    return COUNT_WORDS[study.choice.count]


def _loss_title(study: Study) -> str:
    metric = study.ladder.metric
    words = unit(metric)
    return f"{metric} ({words})" if words else metric
