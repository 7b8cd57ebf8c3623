"""What a report says in words: on a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from example_sweep import Example, finish, grid
from rich.console import Console

from forge.report.comparison import Report, compare_arms
from forge.report.frames import arm_rows, run_rows
from forge.report.rendering import csv_text, markdown, print_report
from forge.report.runs import read_source
from forge.report.table import Table
from forge.report.tables import headline, runs_table, tables

TERMINAL = """\
rates
10 runs in 3 arms: 7 done, 1 failed, 1 running, 1 waiting.
Best eval/loss: 4.4853, lr=0.002.
Against lr=0.001, at 5 %: lr=0.002 is better; lr=0.03 is not tested (one seed).

eval/loss at the end

 arm                    done    mean  deviation     95 % interval
 ────────────────────────────────────────────────────────────────
 lr=0.001 (baseline)  3 of 3  4.6834     0.0291  4.6111 to 4.7557
 lr=0.002             3 of 3  4.4853     0.0290  4.4133 to 4.5574
 lr=0.03              1 of 4  5.1680          –                 –

Lower is better. The interval is Student's t over the runs that are done.
Not every arm has the same seeds done, so compare arms by the differences, which
are of the same seeds.
One run gives no deviation and no interval.

difference to lr=0.001

 arm       difference       95 % interval        p  p (Holm)  test
 ─────────────────────────────────────────────────────────────────────
 lr=0.002     -0.1981  -0.2010 to -0.1951  <0.0001   <0.0001  3 pairs
 lr=0.03      +0.4993                   –        –         –  one seed

Paired by seed: a t-test (ttest_rel) of the differences between two runs of the
same seed, over 3 seeds.
p is two-sided; a single comparison needs no correction.

how soon eval/loss reached 4.6834

 arm                  reached  steps  tokens    time
 ───────────────────────────────────────────────────
 lr=0.001 (baseline)   2 of 3    200    410k  10.4 s
 lr=0.002              3 of 3    200    410k  9.97 s
 lr=0.03               0 of 1      –       –       –

Medians over the runs that are done, of the first log with eval/loss at most
4.6834, the mean of lr=0.001; a run that never reached it counts as later than
all. Time is of training: evaluation, checkpoints and waiting are left out.

config

 arm       differs from lr=0.001 in
 ─────────────────────────────────────
 lr=0.002  optimizer.lr: 0.001 → 0.002
 lr=0.03   optimizer.lr: 0.001 → 0.03

not counted

 run  arm      seed  state
 ──────────────────────────────────────────────────────────────────────────────
 007  lr=0.03  2     failed   the loss was not finite in 10 steps in a row |
                              see <logs>
 008  lr=0.03  3     running  step 100 of 200
 009  lr=0.03  4     waiting

"""
MARKDOWN = r"""
| run | arm | seed | state |  |
| --- | --- | --- | --- | --- |
| 007 | lr=0.03 | 2 | failed | the loss was not finite in 10 steps in a row \| see \<logs\> |
"""


def report(*paths: Path, **choices) -> Report:
    return compare_arms(read_source(paths), **choices)


def printed(made: Report) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_report(made, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def by_name(made: Report, most: int | None = None) -> dict[str, Table]:
    return {table.name: table for table in tables(made, most)}


def firsts(table: Table) -> list[str]:
    return [line[0] for line in table.lines]


def notes(made: Report) -> list[str]:
    return [note for table in tables(made) for note in table.notes]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=20)


def test_on_a_terminal(sweep: Path) -> None:
    assert printed(report(sweep, baseline="lr=0.001")) == TERMINAL


def test_the_documented_example(tmp_path: Path) -> None:
    sweep = grid(tmp_path / "rates", arms=4, seeds=4).path
    made = report(sweep, baseline="lr=0.001 weight_decay=0.05")
    page = Path(__file__).parents[2] / "docs" / "reports.md"
    documented = page.read_text(encoding="utf-8").replace("\n    ", "\n")
    assert f"\n{printed(made)}written: sweeps/rates/report/index.html, " in documented


def test_as_markdown_and_csv(sweep: Path) -> None:
    made = report(sweep, baseline="lr=0.001")
    text = markdown(made)
    assert text.startswith("# rates\n\n10 runs in 3 arms: ")
    assert MARKDOWN in text
    for table in tables(made):
        assert f"## {table.title}\n\n| {table.heads[0]} | " in text
    first, _, last = csv.DictReader(io.StringIO(csv_text(arm_rows(made))))
    assert float(first["mean"]) == made.rows[0].summary.mean
    assert first["difference"] == last["deviation"] == last["p"] == ""
    done, failed, _, waiting = list(csv.DictReader(io.StringIO(csv_text(run_rows(made)))))[6:]
    assert (done["seed"], done["state"], done["step"]) == ("1", "done", "200")
    assert float(done["eval/loss"]) == made.runs[6].final["eval/loss"]
    assert failed["why"] == "the loss was not finite in 10 steps in a row | see <logs>"
    assert (waiting["step"], waiting["optimizer.lr"], waiting["eval/loss"]) == ("0", "", "")


@pytest.mark.parametrize("metric", ["eval/loss", "eval/token_accuracy"])
def test_one_run_of_each_arm_is_ranked_and_not_compared(example: Example, metric: str) -> None:
    for rate, gain in ((1, 0.2), (2, 0.4), (3, 0.0)):
        example.done([f"optimizer.lr=0.00{rate}"], seed=1, gain=gain)
    example.waiting(["optimizer.lr=0.004"], seed=1)
    made = report(example.sweep.path, metric=metric)
    found, path = by_name(made), example.sweep.path
    assert list(found) == ["arms", "configs", "unfinished"]
    assert firsts(found["arms"]) == ["lr=0.002", "lr=0.001", "lr=0.003", "lr=0.004"]
    assert found["arms"].heads == ("arm", "done", "value")
    assert found["arms"].notes[0] == f"{'Higher' if made.higher else 'Lower'} is better."
    assert len(headline(made)) == 2
    assert found["configs"].heads[1] == "differs from lr=0.002, the best, in"
    assert found["configs"].lines[0] == ("lr=0.001", "optimizer.lr: 0.002 → 0.001")
    nothing = [(row["baseline"], row["difference"], row["target"]) for row in arm_rows(made)]
    assert nothing == [(False, None, None)] * 4
    asked = by_name(report(path, metric=metric, reach=0.1 if made.higher else 9.0))["reach"]
    assert [line[:2] for line in asked.lines] == [(f"lr=0.00{n}", "1 of 1") for n in (2, 1, 3)]
    compared = report(path, metric=metric, baseline="lr=0.001")
    assert list(by_name(compared)) == ["arms", "differences", "reach", "configs", "unfinished"]
    assert firsts(by_name(compared)["arms"])[:2] == ["lr=0.001 (baseline)", "lr=0.002"]
    assert "Without interval and p-value: one seed." in notes(compared)
    for text in (printed(compared), markdown(compared), csv_text(arm_rows(compared))):
        assert "nan" not in text.lower()


def test_of_many_arms_the_best_are_shown(example: Example) -> None:
    for rate, gain in ((1, 0.0), (2, -0.3), (3, 0.3), (4, 0.1)):
        example.done([f"optimizer.lr=0.00{rate}"], seed=1, gain=gain)
    for rate in (5, 6):
        example.partial([f"optimizer.lr=0.00{rate}"], seed=1, at=10)
    example.failed(["optimizer.lr=0.007"], seed=1, at=10, why="out of memory")
    made = report(example.sweep.path)
    first, configs, left = tables(made, 2)
    assert firsts(first) == ["lr=0.003", "lr=0.004"]
    assert first.notes[0] == "The best 2 of 7 arms; all of them: --top 7, or arms.csv (--csv FILE)."
    assert configs.notes == first.notes[:1]
    assert [line[3] for line in left.lines] == ["failed", "partial"]
    said = (
        "2 of 3 runs, those that failed first; all of them: --top 3, or runs.csv (--runs-csv FILE)."
    )
    assert (left.notes, len(tables(made)[2].lines)) == ([said], 3)
    assert runs_table(made, 2).notes == ["The first 2 of 7 runs; runs.csv has all."]
    for rate, gain in ((1, 0.0), (2, -0.3), (3, 0.3), (4, 0.1)):
        example.done([f"optimizer.lr=0.00{rate}"], seed=2, gain=gain)
    found = by_name(report(example.sweep.path, baseline="lr=0.001"), 2)
    assert firsts(found["arms"]) == ["lr=0.001 (baseline)", "lr=0.003", "lr=0.004"]
    assert firsts(found["differences"]) == firsts(found["configs"]) == ["lr=0.003", "lr=0.004"]
    said = "The baseline and the best 2 of 6 other arms; all of them: --top 6, or arms.csv"
    assert found["reach"].notes[0] == f"{said} (--csv FILE)."
    assert "p (Holm) is corrected for 3 comparisons." in found["differences"].notes[-1]


def test_what_makes_arms_hard_to_compare_is_said(example: Example) -> None:
    example.waiting(["optimizer.lr=0.001"], seed=1)
    example.done(["optimizer.lr=0.002"], seed=1)
    example.steps = 1200
    longer = example.done(["optimizer.lr=0.003"], seed=1).path / "result.json"
    longer.write_text(longer.read_text().replace('"reason": "end"', '"reason": "patience"'))
    made = report(example.sweep.path, baseline="lr=0.001")
    assert (list(by_name(made)), made.target) == (["arms", "unfinished"], None)
    assert notes(made) == [
        "Lower is better.",
        "The baseline lr=0.001 has no run that is done, so nothing is compared with it.",
    ]
    assert headline(made)[2] == (
        "The runs did not all train as long, and stand in one ranking: 20 to 1,200 steps, "
        "41k to 2.46M tokens (1 ended by patience)."
    )
    arms = by_name(made)["arms"]
    assert arms.heads[:4] == ("arm", "done", "steps", "tokens")
    assert [line[2:4] for line in arms.lines] == [("–", "–"), ("20", "41k"), ("1,200", "2.46M")]
    for rate, seeds in (("0.004", (1, 2, 3)), ("0.005", (4, 5, 6))):
        for seed in seeds:
            example.done([f"optimizer.lr={rate}"], seed=seed)
    said = "Welch: too few seeds are common to pair by, so it is a t-test of unequal variances "
    assert said + "(ttest_ind)." in notes(report(example.sweep.path, baseline="lr=0.004"))


def test_runs_that_do_not_count(example: Example) -> None:
    """One without a value, one whose config is damaged, and a cluster that does not answer."""
    example.done([], seed=1)
    finish(example.done([], seed=2).path, {"eval/loss": None}, step=20)
    broken = example.done([], seed=3).path / "config.yaml"
    broken.write_text("a: [")
    made = report(example.sweep.path)
    made = replace(made, source=replace(made.source, no_answer="squeue timed out"))
    table = tables(made)[-1]
    said = "2 done, 1 failed; 1 of those done without a value of eval/loss."
    assert headline(made)[0] == f"3 runs in 1 arm: {said}"
    assert table.lines[0] == ("001", "sweep", "2", "done", "it has no value of eval/loss")
    assert (table.lines[1][0], table.lines[1][3]) == ("002", "failed")
    assert table.lines[1][4].startswith(f"{broken} cannot be read: ")
    said = "Slurm does not answer, so its jobs are shown as their directories have them: "
    assert table.notes == [f"{said}squeue timed out"]


def test_verdicts(sweep: Path) -> None:
    worse = "Against lr=0.002, at 5 %: lr=0.001 is worse; lr=0.03 is not tested (one seed)."
    for metric in ("eval/loss", "eval/token_accuracy"):
        assert headline(report(sweep, metric=metric, baseline="lr=0.002"))[2] == worse
