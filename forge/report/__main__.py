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
OPTIONS = {  # type, metavar, help
    "metric": (
        str,
        "NAME",
        "compare by this final metric, like eval/loss; default: run.objective of the runs",
    ),
    "baseline": (
        str,
        "ARM",
        "compare with this arm; default: that of the ablation, else the first",
    ),
    "reach": (
        float,
        "VALUE",
        "count steps, tokens and time to this value; default: the baseline's mean, where there is "
        "one",
    ),
    "top": (
        int,
        "N",
        "the best N arms in tables and page, beside the baseline; default: 30 on a terminal, 50 in "
        "Markdown and page",
    ),
}
FILES = {  # name below SWEEP/report, help
    "html": ("index.html", "write a page with learning curves that needs no network; - prints it"),
    "markdown": ("report.md", "write the tables as Markdown; - prints it"),
    "csv": ("arms.csv", "write a row an arm, of all; - prints them"),
    "runs_csv": ("runs.csv", "write a row a run; - prints them"),
}
STDOUT = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and write the files, exit 0; or say what is wrong, exit 2."""
    parser = argparse.ArgumentParser(
        prog="python -m forge.report", description=ABOUT, allow_abbrev=False
    )
    help_of_places = "the directory of a sweep, or those of one or more runs"
    parser.add_argument("places", nargs="+", type=Path, metavar="SWEEP | RUN", help=help_of_places)
    for name, (kind, metavar, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    for kind, (_, text) in FILES.items():
        parser.add_argument(_flag(kind), type=Path, metavar="FILE", help=text)
    options = parser.parse_args(argv)
    if options.top is not None and options.top < 1:
        parser.error("--top takes a number of arms, 1 or more")
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    from forge.report.comparison import compare
    from forge.report.rendering import show
    from forge.report.runs import read

    choices = {name: getattr(options, name) for name in ("metric", "baseline", "reach")}
    report = compare(read(options.places), **choices)
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
