"""`python -m forge.compare A B ...`: what differs in the configs of runs, their curves, and their
metrics at equal steps or tokens.

Examples:
    python -m forge.compare runs/one runs/two
    python -m forge.compare runs/one runs/two runs/three --metric eval/loss --over tokens
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge import cli
from forge.config.numbers import NOTHING, aligned, compact, counted, p_value, percent
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, closest, did_you_mean, refusal
from forge.report.grouping import differing
from forge.report.inventory import Entry, find_runs
from forge.rundir.saved_config import is_run

if TYPE_CHECKING:
    from forge.report.runs import Run

ABOUT = """Compare runs with the first of them: what differs in their configs, their curves drawn
with letters, for every metric that all have logged the differences at equal steps or tokens, and
item by item the tasks that they were evaluated on.
For means over seeds there is forge.report."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WIDTH = 100
NOTE = """{second} - {first}: the difference at the last place that both have; mean, lowest and \
highest are over all such places, whose number is n, and {second} < {first} is the share of them \
at which {second} is lower. Places of one run are no independent samples: there is no p-value."""
ITEMS = """Over the same items, with the 95 % interval of the difference, by document or subject \
where items name one. {first} alone and {second} alone: items that one of them has right; p is of \
McNemar's exact test of these. The interval is over items: another seed would differ, too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; 2 for a path without a run."""
    arguments = cli.Parser("forge.compare", ABOUT)
    add = arguments.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run directories, two or more")
    metric = (
        "draw and compare this one; several: all of them. Default: run.objective and train/loss"
    )
    add("--metric", action="append", default=[], metavar="NAME", help=metric)
    add("--over", choices=("steps", "tokens"), default="steps", help="where runs are compared")
    add("--json", action="store_true", help="the tables as JSON, of every metric")
    options = cli.parse(arguments, argv)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    _check(options.runs)
    shown = [entry for path in options.runs for entry in find_runs([path])[0]]
    runs = [entry.run for entry in shown]
    metrics = _metrics(runs, options.metric)
    if options.json:
        print(cli.printable(json.dumps(_json_content(shown, metrics, options.over), indent=1)))
        return 0
    names = dict(zip(LETTERS, runs, strict=False))
    lines = [f"{letter} = {e.name}" for letter, e in zip(LETTERS, shown, strict=False)]
    states = [f"{e.run.state}, step {e.progress.step:,}" for e in shown]
    lines = aligned([*zip(lines, states, strict=True)])
    lines += ["", *_config(names)]
    drawn = options.metric or _default(runs, metrics)
    for metric in drawn:
        lines += _curves(names, metric, options.over)
    compared = options.metric or metrics
    first, *later = names
    for second in later:
        lines += _differences(names, first, second, compared, options.over)
        lines += _items(names, first, second)
    print(cli.printable("\n".join(lines).rstrip()))
    return 0


def _json_content(found: Sequence[Entry], metrics: Sequence[str], over: str) -> dict[str, Any]:
    from forge.report import items
    from forge.report.pairing import pair

    first, *later = (entry.run for entry in found)
    pairs = [
        {"run": str(run.path), "metric": metric, **(asdict(difference) if difference else {"n": 0})}
        for run in later
        for metric in metrics
        for difference in [pair(first, run, metric, over=over)]
    ]
    texts = [entry.run.texts for entry in found]
    of_items = [
        {"run": str(run.path), **asdict(items_pair)}
        for run in later
        for items_pair in items.pairs(first.path, run.path)
    ]
    return {
        "runs": [
            {"path": str(e.run.path), "state": e.run.state, "step": e.progress.step} for e in found
        ],
        "config": {k: [options.get(k) for options in texts] for k in differing(texts, seeds=True)},
        "over": over,
        "differences": pairs,
        "items": of_items,
    }


def _check(paths: Sequence[Path]) -> None:
    """Refuse paths without a run, and too few or too many runs. Raises ConfigError."""
    problems = [
        Problem(
            key=str(path),
            what=f"{path} is no run: "
            + ("it has no config.yaml." if path.exists() else "there is no such directory."),
            fix="python -m forge.runs lists the runs that there are",
            where=COMMAND_LINE,
        )
        for path in paths
        if not is_run(path)
    ]
    folders = {path.resolve() for path in paths}
    if not problems and not 1 < len(folders) <= len(LETTERS):
        message = f"it takes two to {len(LETTERS)} different runs, and was given {len(folders)}."
        hint = "python -m forge.compare runs/one runs/two; means over seeds: python -m forge.report"
        problems.append(Problem(key="RUN", what=message, fix=hint, where=COMMAND_LINE))
    if problems:
        raise ConfigError(problems)


def _metrics(runs: Sequence[Run], asked: Sequence[str]) -> list[str]:
    """Metrics logged by all runs. Raises ConfigError for any further metric in `asked`."""
    from forge.report.pairing import common_metrics

    common = common_metrics(runs)
    for name in asked:
        if name not in common:
            message = f"not all of these runs have logged {name}."
            meant = did_you_mean([f"--metric {metric}" for metric in closest(name, common)])
            hint = meant or f"all have {', '.join(common) or 'nothing in common'}"
            raise refusal(f"--metric {name}", message, hint, COMMAND_LINE)
    return common


def _default(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    preferred = dict.fromkeys([str(runs[0].objective), "train/loss"])
    return [name for name in preferred if name in metrics]


def _config(names: dict[str, Run]) -> list[str]:
    texts = [run.texts for run in names.values()]
    keys = differing(texts, seeds=True)
    if not keys:
        return ["Their configs are the same.", ""]
    rows = [[key, *(options.get(key, "none") for options in texts)] for key in keys]
    return [*cli.aligned_lines([["config", *names], *rows]), ""]


def _curves(names: dict[str, Run], metric: str, over: str) -> list[str]:
    from forge.report.plot import SEVERAL, plot

    curves = {letter: run.log.curve(metric) for letter, run in names.items()}
    lines = [(letter, getattr(curve, over), curve.values) for letter, curve in curves.items()]
    ends = [x[-1] for _, x, _ in lines if len(x)]
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
    rows = plot(lines, width=width, start=max(ends, default=0.0) / 10)
    return [f"{metric} over {over}   ({SEVERAL}: several)", *rows, ""] if rows else []


def _differences(
    names: dict[str, Run], first: str, second: str, metrics: Sequence[str], over: str
) -> list[str]:
    from forge.report.pairing import pair

    head = ["metric", f"at {over[:-1]}", first, second, f"{second} - {first}"]
    cells = [[*head, "mean", "lowest", "highest", f"{second} < {first}", "n"]]
    for metric in metrics:
        comparison = pair(names[first], names[second], metric, over=over)
        if comparison is not None:
            values = (comparison.first, comparison.second)
            spread = (comparison.difference, comparison.mean, comparison.low, comparison.high)
            numbers = [f"{value:.5g}" for value in values] + [f"{value:+.4g}" for value in spread]
            position = f"{comparison.at:,.0f}" if over == "steps" else compact(comparison.at)
            cells.append([metric, position, *numbers, percent(comparison.lower), str(comparison.n)])
    if len(cells) == 1:
        return [f"{first} and {second} have no {over} in common.", ""]
    note = NOTE.format(first=first, second=second)
    return [*cli.aligned_lines(cells), "", *textwrap.wrap(note, WIDTH), ""]


def _items(names: dict[str, Run], first: str, second: str) -> list[str]:
    """The tasks of two runs, paired by item."""
    from forge.report import items

    alone = [f"{name} alone" for name in (first, second)]
    head = ["task", "metric", "items", first, second, f"{second} - {first}", "95 % interval"]
    cells = [[*head, *alone, "p"]]
    left_out = 0
    for found in items.pairs(names[first].path, names[second].path):
        difference, discordant = found.difference, found.discordant
        span = NOTHING
        if difference.low is not None:
            span = f"{difference.low:+.4g} to {difference.high:+.4g}"
        values = (f"{found.first:.5g}", f"{found.second:.5g}", f"{difference.value:+.4g}", span)
        sides = [NOTHING] * 3
        if discordant is not None:
            sides = [str(discordant.first), str(discordant.second), p_value(discordant.p)]
        cells.append([found.task, found.metric, f"{difference.n:,}", *values, *sides])
        left_out = max(left_out, found.left_out)
    if len(cells) == 1:
        return []
    note = ITEMS.format(first=first, second=second)
    note += f" Left out: {counted(left_out, 'item')} that one of them lacks." * (left_out > 0)
    return [*cli.aligned_lines(cells), "", *textwrap.wrap(note, WIDTH), ""]


if __name__ == "__main__":
    sys.exit(main())
