"""The HTML page: whole by itself, well formed, with the numbers of the tables and links that lead
to the runs.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from example_sweep import Example, finish

from forge.report.comparison import Report, compare_arms
from forge.report.drawing import POINTS, curve, track
from forge.report.grouping import Arm
from forge.report.page import page_data, report_page
from forge.report.runs import read_source
from forge.report.swept import is_by_factors
from forge.report.tables import headline, runs_table, tables

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Seen(HTMLParser):
    """What a page holds: open elements, ids, links, what it would load, and cells of each table."""

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
        known = {name: str(value) for name, value in attrs}
        loads = ("src", "srcset", "data", "action", "background", *["href"] * (tag == "link"))
        self.loaded += [known[name] for name in loads if name in known]
        self.links += [known["href"]] if tag == "a" else []
        self.ids += [known["id"]] if "id" in known else []
        if tag == "table":
            self.table = known["id"]
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


def near(value: float | None):
    return None if value is None else pytest.approx(value, rel=1e-6)


@pytest.fixture(scope="module")
def report(sweep: Path) -> Report:
    return compare_arms(read_source([sweep]), baseline="lr=0.001")


@pytest.fixture(scope="module")
def text(report: Report, sweep: Path) -> str:
    return report_page(report, sweep / "report")


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=200)


def test_it_is_well_formed_and_loads_nothing(text: str, report: Report, sweep: Path) -> None:
    """No address but that of SVG's namespace, which is a name; and a policy that would keep the
    browser from loading any. Links lead to the runs.
    """
    found = seen(text)
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert len(found.ids) == len(set(found.ids))
    assert {"arm-plot", "curves", "data", "table-arms"} <= set(found.ids)
    assert found.loaded == ["data:,"]
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text
    linked = {(sweep / "report" / unquote(link)).resolve() for link in found.links}
    assert linked == {run.path for run in report.runs}


def test_its_tables_are_those_of_the_terminal(text: str, report: Report, sweep: Path) -> None:
    found = seen(text)
    for table in (*tables(report), runs_table(report)):
        cells = found.cells[f"table-{table.name}"]
        expected = [[cell.replace("; ", " ") for cell in line] for line in table.lines]
        assert cells == [list(table.heads), *expected]
    assert all(line in found.texts["p"] for line in headline(report))
    assert "none is common, to the mean of the baseline." in " ".join(found.texts["p"].split())
    best = "<h2>eval/loss of the baseline and the best 1 of 2 arms</h2>"
    assert best in report_page(report, sweep, 1)


def test_its_figures_are_drawn_from_the_same_numbers(text: str, report: Report) -> None:
    data = data_of(text)
    for arm, row in zip(data["arms"], report.rows, strict=True):
        assert arm["name"] == row.name
        assert (arm["mean"], arm["low"]) == (near(row.summary.mean), near(row.summary.low))
        assert arm["difference"] == near(row.difference.mean)
        assert len(arm["values"]) == row.summary.n
    assert [arm["verdict"] for arm in data["arms"]] == ["", "better", ""]
    assert (data["baseline"], data["metric"], data["unit"]) == (0, "eval/loss", "nats a token")
    logged = {"eval/token_accuracy", "lr", "step_seconds", "tokens_per_second"}
    metrics = [one["metric"] for one in data["curves"]]
    assert metrics == ["eval/loss", "train/loss", *sorted(logged)]
    assert ["differences" in one for one in data["curves"]] == [True] * 2 + [False] * 4


def test_text_of_others_is_no_markup(tmp_path: Path) -> None:
    example = Example(tmp_path / "a <b> & 'c'", steps=20)
    example.done([], seed=1, arm="</script><script>alert(1)</script>")
    example.failed([], seed=2, at=10, why="<img src=x onerror=alert(1)>", arm="other")
    text = report_page(compare_arms(read_source([example.sweep.path])), tmp_path)
    assert seen(text).loaded == ["data:,"]
    assert text.count("<script") == 2
    assert data_of(text)["arms"][0]["name"] == "</script><script>alert(1)</script>"


def test_each_command_is_listed_once_with_its_config_dirs(example: Example) -> None:
    point = example.done([], seed=1)
    for folders in (["/my/conf"], ["/my/conf"], []):
        example.sweep.begin(["seed=1,2", "run.tags=[a,b]"], config_dirs=folders)
    text = report_page(compare_arms(read_source([example.sweep.path])), point.path)
    listed = text.partition("<pre>")[2].partition("</pre>")[0].splitlines()
    assert listed[1:] == [
        "python -m forge.train --config-dir /my/conf -m seed=1,2 &#x27;run.tags=[a,b]&#x27;",
        "python -m forge.train -m seed=1,2 &#x27;run.tags=[a,b]&#x27;",
    ]
    assert "<summary>3 commands</summary>" in text


def test_a_curve_is_over_the_seeds(report: Report) -> None:
    """Mean, lowest and highest; a curve of differences is paired by seed."""
    base, better = report.rows[0].arm, report.rows[1].arm
    found = curve(base, "train/loss")
    assert found
    values = np.array([run.log.curve("train/loss").values for run in base.runs])
    assert found["step"] == list(range(10, 201, 10))
    for name, column in (("mean", values.mean(0)), ("low", values.min(0)), ("high", values.max(0))):
        assert found[name] == pytest.approx(column, rel=1e-5)
    assert (found["n"], found["done"]) == (3, True)
    found = curve(better, "eval/loss", base)
    assert found
    ours, theirs = (
        np.array([run.log.curve("eval/loss").values for run in arm.runs]) for arm in (better, base)
    )
    assert found["mean"] == pytest.approx((ours - theirs).mean(0), rel=1e-4)
    assert found["high"] == pytest.approx((ours - theirs).max(0), rel=1e-4)


def test_time_and_tokens_of_an_arm(report: Report) -> None:
    """Over steps: means over its seeds, of which each has a pace of its own."""
    arm = report.rows[0].arm
    found = track(arm)
    assert found
    assert (found["step"][0], found["step"][-1]) == (10, 200)
    assert found["tokens"] == [2048 * step for step in found["step"]]
    paces = [
        json.loads((run.path / "performance.jsonl").read_text().split("\n")[0]) for run in arm.runs
    ]
    pace = np.mean([row["step_seconds"] for row in paces])
    assert found["seconds"] == pytest.approx([pace * step for step in found["step"]], rel=1e-5)


@pytest.mark.parametrize(
    ("values", "log"),
    [
        ((1e-4, 1e-3, 1e-2), True),
        ((1e-4, 3e-4, 1e-3, 3e-3), True),
        ((0.1, 0.2, 0.3, 0.4), False),
        ((0.0, 0.01, 0.1), False),
        ((64, 128, 256, 512), True),
        ((8, 16), False),
        ((1e-3, 1e-2), True),
    ],
)
def test_numbers_that_are_spaced_by_factors(values: tuple[float, ...], log: bool) -> None:
    assert is_by_factors(values) == log


def test_what_was_swept(example: Example) -> None:
    """Two numbers, one of them not in order, and names: each figure has what it is drawn from."""
    for optimizer in ("lion", "adamw"):
        for lr in ("1e-2", "1e-3", "1e-4"):
            overrides = [f"optimizer={optimizer}", f"optimizer.lr={lr}", "train.grad_clip_norm=0.5"]
            example.done(overrides, seed=1, gain=0.1)
    data = page_data(compare_arms(read_source([example.sweep.path])))
    assert [(one["key"], one["values"], one["number"], one["log"]) for one in data["swept"]] == [
        ("optimizer", ("adamw", "lion"), False, False),
        ("optimizer.lr", ("0.0001", "0.001", "0.01"), True, True),
    ]
    rates = ("0.0001", "0.001", "0.01")
    expected = [[name, rate] for name in ("adamw", "lion") for rate in rates]
    assert sorted(arm["at"] for arm in data["arms"]) == expected
    text = report_page(compare_arms(read_source([example.sweep.path])), example.sweep.path)
    assert re.findall(r'data-option="(\d)"', text) == ["1"]
    assert 'id="heat"' in text
    example.done(["optimizer=lion", "optimizer.lr=1e-3", "train.grad_clip_norm=2"], seed=1)
    text = report_page(compare_arms(read_source([example.sweep.path])), example.sweep.path)
    assert 'id="parallel"' in text
    assert 'id="heat"' not in text


def test_a_curve_is_of_the_runs_that_count(example: Example) -> None:
    """Runs under way where none is done, as far as all have come; and no run without a value."""
    example.partial([], seed=1, at=150)
    example.partial([], seed=2, at=80)
    example.waiting([], seed=3)
    arm = Arm(name="all", runs=tuple(read_source([example.sweep.path]).runs))
    found = curve(arm, "train/loss")
    assert found
    assert (found["step"][-1], found["n"], found["done"]) == (80, 2, False)
    assert curve(arm, "never/logged") is None
    assert curve(arm, "train/loss", Arm(name="none", runs=())) is None
    example.done([], seed=4)
    lost = example.partial([], seed=5, at=50)
    finish(lost.path, {"train/loss": None, "eval/loss": None}, step=200)
    found = curve(compare_arms(read_source([example.sweep.path])).rows[0].arm, "train/loss")
    assert found
    assert (found["n"], found["step"][-1]) == (1, 200)


@pytest.mark.parametrize("points", [POINTS, 30])
def test_long_curves_are_thinned_out(example: Example, points: int) -> None:
    example.steps = 700 if points < POINTS else 30 * POINTS
    example.done([], seed=1)
    made = compare_arms(read_source([example.sweep.path]))
    found = curve(made.rows[0].arm, "train/loss", points=points)
    assert found
    values = made.runs[0].log.curve("train/loss").values
    edges = [i * len(values) // points for i in range(points + 1)]
    means = [values[a:b].mean() for a, b in itertools.pairwise(edges)]
    assert found["mean"] == pytest.approx(means, rel=1e-5)


def test_a_ranked_page(example: Example) -> None:
    """The best arms, without a word of a baseline."""
    for i in range(4):
        example.done([], seed=1, gain=i / 10, arm=f"arm {i}")
    made = compare_arms(read_source([example.sweep.path]))
    data = page_data(made, 2)
    assert [arm["name"] for arm in data["arms"]] == ["arm 3", "arm 2"]
    assert (data["baseline"], data["arms"][0]["difference"]) == (None, None)
    text = report_page(made, example.sweep.path, 2)
    assert "<h2>eval/loss of the best 2 of 4 arms</h2>" in text
    said = seen(text).texts["p"]
    assert "The best 2 of 4 arms; all of them: --top 4, or arms.csv (--csv FILE)." in said
    assert "A dot an arm: its run. The best is the first." in said
    assert "A line a run. An arm is shown or hidden by its name. Time is of training." in said
    assert "baseline" not in said


def test_a_sweep_without_curves_or_comparison(example: Example) -> None:
    """One run, evaluated once."""
    log = example.done([], seed=1).path / "metrics.jsonl"
    log.write_text('{"step": 20, "eval/loss": 4.2}\n')
    log.with_name("performance.jsonl").unlink()
    made = compare_arms(read_source([example.sweep.path]))
    assert page_data(made)["curves"] == []
    text = report_page(made, example.sweep.path)
    assert 'id="curves"' not in text
    assert "table-differences" not in text
