"""The HTML page: whole by itself, well formed, with the numbers of the tables and links that lead
to the runs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from example_sweep import Example, finish

from forge.report.comparison import Report, compare
from forge.report.grouping import Arm
from forge.report.page import page
from forge.report.page_data import POINTS, curve, page_data
from forge.report.runs import read
from forge.report.tables import headline, runs_table, tables

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Seen(HTMLParser):
    """What a page holds: open elements, ids, links, what it would load, and the cells of each
    table.
    """

    open: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    cells: dict[str, list[list[str]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    table: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.loaded += [
            str(known[name])
            for name in ("src", "srcset", "data", "action", "background")
            if name in known
        ]
        self.loaded += [str(known["href"])] if tag == "link" else []
        self.links += [str(known["href"])] if tag == "a" else []
        self.ids += [str(known["id"])] if "id" in known else []
        if tag == "table":
            self.table = str(known["id"])
            self.cells[self.table] = []
        if tag == "tr":
            self.cells[self.table].append([])
        if tag in ("td", "th"):
            self.cells[self.table][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        self.texts[tag] = self.texts.get(tag, "") + data
        if {"td", "th"} & set(self.open):
            self.cells[self.table][-1][-1] += data


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.fixture(scope="module")
def report(sweep: Path) -> Report:
    return compare(read([sweep]))


@pytest.fixture(scope="module")
def text(report: Report, sweep: Path) -> str:
    return page(report, sweep / "report")


def test_it_loads_nothing(text: str) -> None:
    """No address but that of SVG's namespace, which is a name; and a policy that would keep the
    browser from loading any.
    """
    found = seen(text)
    assert found.loaded == ["data:,"]
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(#" in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_it_is_well_formed(text: str) -> None:
    found = seen(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert len(found.ids) == len(set(found.ids))
    assert {"arm-plot", "curves", "data", "table-arms"} <= set(found.ids)
    assert "prefers-color-scheme: dark" in text


def test_its_tables_are_those_of_the_terminal(text: str, report: Report) -> None:
    found = seen(text)
    for table in (*tables(report), runs_table(report)):
        lines = [
            [" ".join(cell.split()) for cell in line] for line in found.cells[f"table-{table.name}"]
        ]
        assert lines == [
            list(table.heads),
            *([" ".join(cell.replace("; ", " ").split()) for cell in line] for line in table.lines),
        ]
    assert all(line in found.texts["p"] for line in headline(report))


def test_its_figures_are_drawn_from_the_same_numbers(text: str, report: Report) -> None:
    data = data_of(text)
    assert [arm["name"] for arm in data["arms"]] == [row.name for row in report.rows]
    for arm, row in zip(data["arms"], report.rows, strict=True):
        assert row.summary
        assert arm["mean"] == pytest.approx(row.summary.mean, rel=1e-6)
        assert arm["low"] == (
            None if row.summary.low is None else pytest.approx(row.summary.low, rel=1e-6)
        )
        assert arm["difference"] == (
            None if row.difference is None else pytest.approx(row.difference.mean, rel=1e-6)
        )
        assert len(arm["values"]) == row.summary.n
    assert [arm["verdict"] for arm in data["arms"]] == ["", "better", ""]
    assert (data["baseline"], data["metric"], data["unit"]) == (0, "eval/loss", "nats a token")
    assert [one["metric"] for one in data["curves"]] == ["eval/loss", "train/loss"]


def test_links_lead_to_the_runs(text: str, report: Report, sweep: Path) -> None:
    found = {(sweep / "report" / unquote(link)).resolve() for link in seen(text).links}
    assert found == {run.path for run in report.runs}


def test_text_of_others_is_no_markup(tmp_path: Path) -> None:
    example = Example(tmp_path / "a <b> & 'c'", steps=20)
    example.done([], seed=1, arm="</script><script>alert(1)</script>")
    example.failed([], seed=2, at=10, why="<img src=x onerror=alert(1)>", arm="other")
    text = page(compare(read([example.sweep.path])), tmp_path)
    assert seen(text).loaded == ["data:,"]
    assert text.count("<script") == 2
    assert data_of(text)["arms"][0]["name"] == "</script><script>alert(1)</script>"


def test_each_command_is_listed_once_with_its_config_dirs(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    point = example.done([], seed=1)
    typed = ["seed=1,2", "run.tags=[a,b]"]
    for folders in (["/my/conf"], ["/my/conf"], []):
        example.sweep.begin(typed, config_dirs=folders)
    text = page(compare(read([example.sweep.path])), point.path)
    start = "python -m forge.train"
    listed = text.partition("<pre>")[2].partition("</pre>")[0].splitlines()
    assert listed[1:] == [
        f"{start} --config-dir /my/conf -m seed=1,2 &#x27;run.tags=[a,b]&#x27;",
        f"{start} -m seed=1,2 &#x27;run.tags=[a,b]&#x27;",
    ]
    assert "<summary>3 commands</summary>" in text


def test_a_curve_is_the_mean_of_the_seeds_with_the_lowest_and_the_highest(report: Report) -> None:
    arm = report.rows[0].arm
    found = curve(arm, "train/loss")
    assert found
    values = np.array([run.logged.series("train/loss").values for run in arm.runs])
    assert found["step"] == list(range(10, 201, 10))
    assert found["tokens"] == [2048 * step for step in found["step"]]
    for name, column in (("mean", values.mean(0)), ("low", values.min(0)), ("high", values.max(0))):
        assert found[name] == pytest.approx(column, rel=1e-6)
    assert (found["n"], found["done"]) == (3, True)


def test_a_curve_of_differences_is_paired_by_seed(report: Report) -> None:
    base, better = report.rows[0].arm, report.rows[1].arm
    found = curve(better, "eval/loss", base)
    assert found
    apart = np.array(
        [
            b.logged.series("eval/loss").values - a.logged.series("eval/loss").values
            for a, b in zip(base.runs, better.runs, strict=True)
        ]
    )
    assert found["mean"] == pytest.approx(apart.mean(0), rel=1e-5)
    assert found["high"] == pytest.approx(apart.max(0), rel=1e-5)


def test_a_curve_ends_where_its_first_seed_does_and_counts_runs_under_way_where_none_is_done(
    tmp_path: Path,
) -> None:
    example = Example(tmp_path / "sweep", steps=200)
    example.partial([], seed=1, at=150)
    example.partial([], seed=2, at=80)
    example.waiting([], seed=3)
    arm = Arm(name="all", runs=tuple(read([example.sweep.path]).runs))
    found = curve(arm, "train/loss")
    assert found
    assert (found["step"][-1], found["n"], found["done"]) == (80, 2, False)
    assert curve(arm, "never/logged") is None
    assert curve(arm, "train/loss", Arm(name="none", runs=())) is None


def test_long_curves_are_thinned_out(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=10 * POINTS * 3)
    example.done([], seed=1)
    made = compare(read([example.sweep.path]))
    found = curve(made.rows[0].arm, "train/loss")
    assert found
    values = made.runs[0].logged.series("train/loss").values
    assert len(found["step"]) == POINTS
    assert found["mean"] == pytest.approx(values.reshape(POINTS, 3).mean(1), rel=1e-6)


def test_many_curves_are_thinned_out_more_and_the_best_arms_shown(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=700)
    for i in range(4):
        example.done([], seed=1, gain=i / 10, arm=f"arm {i}")
    made = compare(read([example.sweep.path]))
    data = page_data(made, 2)
    assert [arm["name"] for arm in data["arms"]] == ["arm 3", "arm 2"]
    assert data["baseline"] is None
    found = curve(made.rows[0].arm, "train/loss", points=30)
    assert found
    values = made.runs[0].logged.series("train/loss").values
    assert found["mean"] == pytest.approx(
        [part.mean() for part in (values[i * 70 // 30 : (i + 1) * 70 // 30] for i in range(30))],
        rel=1e-6,
    )
    text = page(made, tmp_path, 2)
    assert "<h2>eval/loss of the best 2 of 4 arms</h2>" in text
    assert (
        "The best 2 of 4 arms; all of them: --top 4, or arms.csv (--csv FILE)."
        in seen(text).texts["p"]
    )


def test_a_ranked_page_speaks_of_no_baseline(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=40)
    for i in range(2):
        example.done([], seed=1, gain=i / 10, arm=f"arm {i}")
    said = seen(page(compare(read([example.sweep.path])), tmp_path)).texts["p"]
    assert "baseline" not in said
    assert "A dot an arm: its run. The best is the first." in said
    assert "A line a run. An arm is shown or hidden by its name. Time is of training." in said


def test_what_is_said_of_compared_arms(text: str, report: Report, sweep: Path) -> None:
    said = " ".join(seen(text).texts["p"].split())
    assert (
        "Small dots: runs. Large: mean with its 95\xa0% interval. Beside it: the difference"
        not in said
    )
    assert (
        "Large: mean with its 95 % interval. Beside it: the difference to the baseline with its own."
        in said
    )
    assert (
        "A difference is between runs of the same seed; where none is common, to the mean of the baseline."
        in said
    )
    assert "<h2>eval/loss of the baseline and the best 1 of 2 arms</h2>" in page(report, sweep, 1)


def test_a_curve_is_of_the_runs_that_count(tmp_path: Path) -> None:
    """A run whose loss was not finite at the end has no value in the tables, and would end the
    curve of the others.
    """
    example = Example(tmp_path / "sweep", steps=200)
    example.done([], seed=1)
    lost = example.done([], seed=2)
    lines = (lost.path / "metrics.jsonl").read_text().splitlines()
    (lost.path / "metrics.jsonl").write_text("\n".join(lines[:5]) + "\n")
    finish(lost.path, {"train/loss": None, "eval/loss": None}, step=200)
    made = compare(read([example.sweep.path]))
    found = curve(made.rows[0].arm, "train/loss")
    assert found
    assert (found["n"], found["step"][-1]) == (1, 200)


def test_a_sweep_without_curves_or_comparison(tmp_path: Path) -> None:
    """One run, evaluated once."""
    example = Example(tmp_path / "sweep", steps=20)
    (example.done([], seed=1).path / "metrics.jsonl").write_text('{"step": 20, "eval/loss": 4.2}\n')
    made = compare(read([example.sweep.path]))
    assert page_data(made)["curves"] == []
    text = page(made, tmp_path)
    assert 'id="curves"' not in text
    assert "table-differences" not in text
