"""A report from Python: its data frames, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.problems import refusal
from forge.launch.sweep.directory import POINTS
from forge.report import run_page
from forge.report.comparison import Report
from forge.report.frames import Places, arm_row, arm_rows, curves_of, read_report, run_rows
from forge.report.inventory import find_runs
from forge.report.page import report_page
from forge.report.rendering import markdown
from forge.report.tables import headline
from forge.rundir import untrusted
from forge.rundir.directory import short

if TYPE_CHECKING:
    import pandas

DIFFERENCE = ("arm", "difference", "difference_low", "difference_high", "test", "pairs")
DIFFERENCE += ("p", "p_holm")


def framed(sweep: Places, **choices: Any) -> Framed:
    """choices: of `forge.report.comparison.compare_arms`. Raises ConfigError."""
    report = read_report(sweep, **choices)
    return Framed(report=report, page=_write_page(report))


@dataclass(frozen=True, kw_only=True)
class Framed:
    """The data frames of a report. report: their source.

    page: the written HTML file of a sweep or of a single run; None for several runs.
    """

    report: Report
    page: Path | None

    def __repr__(self) -> str:
        page = [f"page: {short(self.page)}"] if self.page else []
        return "\n".join([*headline(self.report), *page])

    def _repr_markdown_(self) -> str:
        """The text for a notebook."""
        return markdown(self.report)

    @cached_property
    def runs(self) -> pandas.DataFrame:
        """A row a run: arm, seed, state, the options differing between arms, final metrics."""
        return _frame(run_rows(self.report))

    @cached_property
    def arms(self) -> pandas.DataFrame:
        """A row an arm: mean, deviation, interval, difference to the baseline, time to target."""
        return _frame(arm_rows(self.report))

    @cached_property
    def differences(self) -> pandas.DataFrame:
        """A row a compared arm: the difference to the baseline, its interval, test and p-values.

        The intervals are of 95 %.
        """
        compared = self.report.others if self.report.compared else []
        return _frame([arm_row(row, self.report) for row in compared], DIFFERENCE)

    def curves(self, metric: str = "train/loss") -> pandas.DataFrame:
        """A row a log of a metric: arm, seed, run, step, tokens, seconds of training."""
        return curves_of(self.report, metric)


def _frame(rows: list[dict[str, Any]], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows, columns=None if columns is None else list(columns))


def _write_page(report: Report) -> Path | None:
    sweep, runs = report.source.path, [run.path for run in report.runs]
    if sweep is None and len(runs) > 1:
        return None
    folder = sweep or runs[0]
    untrusted.check_links(folder, apart=(POINTS,) if sweep else ())
    file = folder / "report" / "index.html"
    text = (
        report_page(report, file.parent) if sweep else run_page.page_of_run(find_runs(runs)[0][0])
    )
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"it cannot be written: {error.strerror or error}."
        raise refusal(str(file), message, "give access to its folder") from None
    return file
