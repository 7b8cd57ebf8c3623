"""`python -m forge.report SWEEP`: what each arm of a sweep reached, how it differs from the
baseline, and what failed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge import cli
from forge.config.problems import COMMAND_LINE, ConfigError, Problem
from forge.launch.sweep.directory import POINTS
from forge.rundir import links

if TYPE_CHECKING:
    from forge.report.comparison import Report

ABOUT = """What each arm of a sweep reached, over its seeds: mean, deviation, 95 % interval, difference to the baseline with its
interval and p-value, how soon it reached a value, and what failed. Prints tables; of a sweep it also writes SWEEP/report/
(index.html, report.md, arms.csv, runs.csv), unless the files are named here. Several RUNs are compared with the first."""


NAMES = {"html": "index.html", "markdown": "report.md", "csv": "arms.csv", "runs_csv": "runs.csv"}
STDOUT = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and write the files, exit 0; or say what is wrong, exit 2."""
    options = _arguments().parse_args(argv)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    from rich.console import Console

    from forge.report.comparison import compare
    from forge.report.runs import read
    from forge.report.terminal import show, width
    from forge.rundir.directory import short

    _check_files(options)
    report = compare(
        read(options.places), metric=options.metric, baseline=options.baseline, reach=options.reach
    )
    most = {} if options.top is None else {"most": options.top}
    files = _files(options, report.source.path)
    printed = [kind for kind, path in files.items() if path == STDOUT]
    try:
        written = _write(
            {kind: path for kind, path in files.items() if kind not in printed}, report, most
        )
    finally:
        if not printed:
            show(report, Console(force_jupyter=False, width=width()), **most)
    for kind in printed:
        sys.stdout.write(_text(kind, STDOUT, report, most))
    if written:
        print(
            f"written: {', '.join(short(path) for path in written)}",
            file=sys.stderr if printed else sys.stdout,
        )
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forge.report", description=ABOUT, allow_abbrev=False
    )
    parser.add_argument(
        "places",
        nargs="+",
        type=Path,
        metavar="SWEEP | RUN",
        help="the directory of a sweep, or those of one or more runs",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="compare by this final metric, like eval/loss; default: run.objective of the runs",
    )
    parser.add_argument(
        "--baseline",
        metavar="ARM",
        help="compare with this arm; default: that of the ablation, else the first",
    )
    parser.add_argument(
        "--reach",
        type=_finite,
        metavar="VALUE",
        help="count steps, tokens and time to this value; default: the baseline's mean, where there is one",
    )
    parser.add_argument(
        "--top",
        type=_positive,
        metavar="N",
        help="the best N arms in tables and page, beside the baseline; default: 30 on a terminal, 50 in Markdown and page",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with learning curves that needs no network",
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the tables as Markdown; - prints it"
    )
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="write a row an arm, of all; - prints them"
    )
    parser.add_argument(
        "--runs-csv", type=Path, metavar="FILE", help="write a row a run; - prints them"
    )
    return parser


def _named(options: argparse.Namespace) -> dict[str, Path]:
    return {kind: path for kind in NAMES if (path := getattr(options, kind)) is not None}


def _files(options: argparse.Namespace, sweep: Path | None) -> dict[str, Path]:
    """Where each format is to be written. Raises ConfigError for a sweep that has links out of it."""
    if (named := _named(options)) or sweep is None:
        return named
    links.check(sweep, apart=(POINTS,))
    return {kind: sweep / "report" / name for kind, name in NAMES.items()}


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before anything is read."""
    from forge.resolve.rules.run_directory import unwritable

    named = _named(options)
    several = list(named.values()).count(STDOUT) > 1
    problems = []
    for kind, path in named.items():
        why, elsewhere = "", f"{_flag(kind)} FILE elsewhere"
        if path == STDOUT:
            why = (
                "a page is not printed"
                if kind == "html"
                else "only one of them can be printed"
                if several
                else ""
            )
            elsewhere = f"{_flag(kind)} FILE"
        elif path.is_dir():
            why, elsewhere = "it is a directory", f"{_flag(kind)} {path / NAMES[kind]}"
        elif fault := unwritable(str(path.parent)):
            why = f"it cannot be written: {fault}"
        if why:
            problems.append(
                Problem(
                    key=f"{_flag(kind)} {path}", what=f"{why}.", fix=elsewhere, where=COMMAND_LINE
                )
            )
    if problems:
        raise ConfigError(problems)


def _write(files: dict[str, Path], report: Report, most: dict[str, int]) -> list[Path]:
    for kind, path in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_text(kind, path, report, most), encoding="utf-8")
        except OSError as error:
            what = f"it cannot be written: {error.strerror or error}."
            raise ConfigError(
                [Problem(key=str(path), what=what, fix=f"{_flag(kind)} FILE elsewhere")]
            ) from None
    return list(files.values())


def _text(kind: str, path: Path, report: Report, most: dict[str, int]) -> str:
    from forge.report.markdown import markdown
    from forge.report.page import page
    from forge.report.rows import arm_rows, csv_text, run_rows

    made: dict[str, Callable[[], str]] = {
        "html": lambda: page(report, path.parent, **most),
        "markdown": lambda: markdown(report, **most),
        "csv": lambda: csv_text(arm_rows(report)),
        "runs_csv": lambda: csv_text(run_rows(report)),
    }
    return made[kind]()


def _flag(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of arms")
    return int(text)


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value


if __name__ == "__main__":
    sys.exit(main())
