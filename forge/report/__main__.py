"""`python -m forge.report SWEEP`: what each arm of a sweep reached, how it differs from the
baseline, and what failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge import cli
from forge.config.problems import refusal
from forge.launch.sweep.directory import POINTS
from forge.rundir import untrusted
from forge.rundir.directory import short

if TYPE_CHECKING:
    from forge.report.comparison import Report

ABOUT = """What each arm of a sweep reached, over its seeds: mean, deviation, 95 % interval,
difference to the baseline with its interval and p-value, how soon it reached a value, and what
failed. Prints tables; of a sweep it also writes SWEEP/report/ (index.html, report.md, arms.csv,
runs.csv), unless the files are named here. Several RUNs are compared with the first."""
FILES = {  # name below SWEEP/report, help
    "html": ("index.html", "write a page with learning curves that needs no network; - prints it"),
    "markdown": ("report.md", "write the tables as Markdown; - prints it"),
    "csv": ("arms.csv", "write a row an arm, of all; - prints them"),
    "runs_csv": ("runs.csv", "write a row a run; - prints them"),
}
STDOUT = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m forge.report", description=ABOUT, allow_abbrev=False
    )
    add = parser.add_argument
    places = "the directory of a sweep, or those of one or more runs"
    add("places", nargs="+", type=Path, metavar="SWEEP | RUN", help=places)
    metric = "compare by this final metric, like eval/loss; default: run.objective of the runs"
    add("--metric", metavar="NAME", help=metric)
    baseline = "compare with this arm; default: that of the ablation, else the first"
    add("--baseline", metavar="ARM", help=baseline)
    reach = "count steps, tokens and time to this value; default: the baseline's mean, if any"
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
    from forge.report.comparison import compare
    from forge.report.rendering import show
    from forge.report.runs import read

    source = read(options.places)
    report = compare(source, metric=options.metric, baseline=options.baseline, reach=options.reach)
    most = {} if options.top is None else {"most": options.top}
    files = {kind: path for kind in FILES if (path := getattr(options, kind)) is not None}
    if not files and (sweep := report.source.path):
        untrusted.check_links(sweep, apart=(POINTS,))
        files = {kind: sweep / "report" / name for kind, (name, _) in FILES.items()}
    prints = STDOUT in files.values()
    if not prints:
        show(report, **most)
    for kind, path in files.items():
        _write(_text(kind, path, report, most), kind, path)
    if written := [short(path) for path in files.values() if path != STDOUT]:
        print(f"written: {', '.join(written)}", file=sys.stderr if prints else sys.stdout)
    return 0


def _text(kind: str, path: Path, report: Report, most: dict[str, int]) -> str:
    from forge.report import frames, page, rendering

    if kind == "html":
        return page.page(report, path.parent, **most)
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
        what = f"it cannot be written: {error.strerror or error}."
        raise refusal(str(path), what, f"{_flag(kind)} FILE elsewhere") from None


def _flag(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"


if __name__ == "__main__":
    sys.exit(main())
