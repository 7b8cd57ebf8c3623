"""`python -m forge.report SWEEP`: what each arm of a sweep reached, how it differs from the
baseline, and what failed; `forge.report RUN`: a page of one run.

Examples:
    python -m forge.report sweeps/rates --baseline lr=0.002
    python -m forge.report runs/mine
    python -m forge.report runs/a runs/b --metric eval/loss
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge import cli
from forge.config.problems import COMMAND_LINE, refusal
from forge.launch.sweep.directory import POINTS
from forge.rundir import untrusted
from forge.rundir.directory import short
from forge.rundir.saved_config import is_run

if TYPE_CHECKING:
    from forge.report.comparison import Report

ABOUT = """What each arm of a sweep reached, over its seeds: mean, deviation, 95 % interval,
difference to the baseline with its interval and p-value, how soon it reached a value, and what
failed. Prints tables; of a sweep it also writes SWEEP/report/ (index.html, report.md, arms.csv,
runs.csv), unless the files are named here. Several RUNs are compared with the first. Of one RUN it
writes RUN/report/index.html: curves, samples, config and provenance."""
FILES = {  # name below SWEEP/report, help
    "html": ("index.html", "write a page with learning curves that needs no network; - prints it"),
    "markdown": ("report.md", "write the tables as Markdown; - prints it"),
    "csv": ("arms.csv", "write a row an arm, of all; - prints them"),
    "runs_csv": ("runs.csv", "write a row a run; - prints them"),
}
STDOUT = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    parser = cli.Parser("forge.report", ABOUT)
    add = parser.add_argument
    sources = "the directory of a sweep, or those of one or more runs"
    add("places", nargs="+", type=Path, metavar="SWEEP | RUN", help=sources)
    metric = "compare by this final metric, like eval/loss; default: run.objective of the runs"
    add("--metric", metavar="NAME", help=metric)
    baseline = "compare with this arm or value (lr=0.001); default: the ablation's, else the best"
    add("--baseline", metavar="ARM | VALUE", help=baseline)
    reach = "count steps, tokens and time to this value; default: the mean of a named baseline, "
    reach += "else of the arm in the middle"
    add("--reach", type=float, metavar="VALUE", help=reach)
    top = "the best N arms, beside the baseline; default: 30 on a terminal, 50 in Markdown and page"
    add("--top", type=int, metavar="N", help=top)
    for kind, (_, text) in FILES.items():
        add(_flag(kind), type=Path, metavar="FILE", help=text)
    options = parser.parse_args(argv)
    if options.top is not None and options.top < 1:
        parser.error("--top takes a number of arms, 1 or more")
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    if len(options.places) == 1 and is_run(options.places[0]):
        return _of_run(options)
    from forge.report.comparison import compare_arms
    from forge.report.rendering import print_report
    from forge.report.runs import read_source

    source = read_source(options.places)
    report = compare_arms(
        source, metric=options.metric, baseline=options.baseline, reach=options.reach
    )
    most = {} if options.top is None else {"most": options.top}
    files = {kind: path for kind in FILES if (path := getattr(options, kind)) is not None}
    if not files and (sweep := report.source.path):
        untrusted.check_links(sweep, apart=(POINTS,))
        files = {kind: sweep / "report" / name for kind, (name, _) in FILES.items()}
    prints = STDOUT in files.values()
    if not prints:
        print_report(report, **most)
    for kind, path in files.items():
        _write(_text(kind, path, report, most), kind, path)
    if written := [short(path) for path in files.values() if path != STDOUT]:
        print(f"written: {', '.join(written)}", file=sys.stderr if prints else sys.stdout)
    return 0


def _of_run(options: argparse.Namespace) -> int:
    from forge.report import run_page
    from forge.report.inventory import find_runs

    run = options.places[0]
    for name in ("metric", "baseline", "reach", "top", *FILES):
        if name != "html" and getattr(options, name) is not None:
            message = "it is of a sweep, or of several runs: the page of one run has all of it."
            hint = f"python -m forge.report {short(run)}, or --html FILE"
            raise refusal(_flag(name), message, hint, COMMAND_LINE)
    (entry,), _ = find_runs([run])
    path = options.html or run / "report" / "index.html"
    if options.html is None:
        untrusted.check_links(run)
    text = run_page.page_of_run(entry)
    if path != STDOUT:
        for line in [entry.name, *run_page.run_summary(entry)]:
            print(cli.printable(line))
    _write(text, "html", path)
    if path != STDOUT:
        print(f"written: {short(path)}")
    return 0


def _text(kind: str, path: Path, report: Report, most: dict[str, int]) -> str:
    from forge.report import frames, page, rendering

    if kind == "html":
        return page.report_page(report, path.parent, **most)
    if kind == "markdown":
        return rendering.markdown(report, **most)
    rows = frames.arm_rows(report) if kind == "csv" else frames.run_rows(report)
    return rendering.csv_text(rows)


def _write(text: str, kind: str, path: Path) -> None:
    if path == STDOUT:
        sys.stdout.write(text)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"it cannot be written: {error.strerror or error}."
        raise refusal(str(path), message, f"{_flag(kind)} FILE elsewhere") from None


def _flag(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"


if __name__ == "__main__":
    sys.exit(main())
