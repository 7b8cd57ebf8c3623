"""`python -m forge.report SWEEP`: what each arm of a sweep reached, how it differs from the baseline, and what failed."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge.config import cli
from forge.config.errors import ConfigError, Problem

if TYPE_CHECKING:
    from forge.analysis.comparison import Report

ABOUT = """What each arm of a sweep reached, over its seeds: mean, deviation, 95 % interval, difference to the baseline with its
interval and p-value, how soon it reached a value, and what failed. Prints tables; of a sweep it also writes SWEEP/report/
(index.html, report.md, arms.csv, runs.csv), unless the files are named here. Several RUNs are compared with the first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and write the files, exit 0; or say what is wrong, exit 2."""
    options = _arguments().parse_args(argv)
    return cli.refuse(lambda: _main(options))


def _main(options: argparse.Namespace) -> int:
    from rich.console import Console

    from forge.analysis.comparison import compare
    from forge.analysis.runs import read
    from forge.analysis.terminal import show
    from forge.launch.directory import short

    report = compare(read(options.places), metric=options.metric, baseline=options.baseline, reach=options.reach)
    try:
        written = _write(_files(options, report.source.path), report)
    finally:
        show(report, Console(force_jupyter=False))
    if written:
        print(f"written: {', '.join(short(path) for path in written)}")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forge.report", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "places", nargs="+", type=Path, metavar="SWEEP | RUN", help="the directory of a sweep, or those of one or more runs"
    )
    parser.add_argument("--metric", metavar="NAME", help="compare by this final metric, like eval/loss; default: run.objective of the runs")
    parser.add_argument("--baseline", metavar="ARM", help="compare with this arm; default: that of the ablation, else the first")
    parser.add_argument(
        "--reach", type=_finite, metavar="VALUE", help="count steps, tokens and time to this value; default: the baseline's mean"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with learning curves that needs no network")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a row an arm")
    parser.add_argument("--runs-csv", type=Path, metavar="FILE", help="write a row a run")
    return parser


def _files(options: argparse.Namespace, sweep: Path | None) -> dict[str, Path]:
    """Where each format is to be written."""
    names = {"html": "index.html", "markdown": "report.md", "csv": "arms.csv", "runs_csv": "runs.csv"}
    named = {kind: path for kind in names if (path := getattr(options, kind)) is not None}
    return named or ({kind: sweep / "report" / name for kind, name in names.items()} if sweep else {})


def _write(files: dict[str, Path], report: Report) -> list[Path]:
    from forge.analysis.markdown import markdown
    from forge.analysis.page import page
    from forge.analysis.rows import arm_rows, csv_text, run_rows

    made: dict[str, Callable[[Path], str]] = {
        "html": lambda path: page(report, path.parent),
        "markdown": lambda _: markdown(report),
        "csv": lambda _: csv_text(arm_rows(report)),
        "runs_csv": lambda _: csv_text(run_rows(report)),
    }
    for kind, path in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[kind](path), encoding="utf-8")
        except OSError as error:
            what = f"it cannot be written: {error.strerror or error}."
            raise ConfigError([Problem(key=str(path), what=what, fix=f"--{kind.replace('_', '-')} FILE elsewhere")]) from None
    return list(files.values())


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
