"""What a report says in words: on a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from example_sweep import Example, grid
from rich.console import Console

from forge.config.numbers import Decimals, compact, duration, p_value
from forge.report.comparison import Report, compare
from forge.report.markdown import markdown
from forge.report.page_data import page_data
from forge.report.rows import arm_rows, csv_text, run_rows
from forge.report.runs import read
from forge.report.tables import headline, runs_table, tables
from forge.report.terminal import show

TERMINAL = """\
rates
10 runs in 3 arms: 7 done, 1 failed, 1 running, 1 waiting.
Best eval/loss: 4.4853, lr=0.002.
Against lr=0.001, at 5 %: lr=0.002 is better.

eval/loss at the end

 arm                    done    mean  deviation     95 % interval
 ────────────────────────────────────────────────────────────────
 lr=0.001 (baseline)  3 of 3  4.6834     0.0291  4.6111 to 4.7557
 lr=0.002             3 of 3  4.4853     0.0290  4.4133 to 4.5574
 lr=0.03              1 of 4  5.1680          –                 –

Lower is better. The interval is Student's t over the runs that are done.
Not every arm has the same seeds done, so compare arms by the differences, which
are of the same seeds.
One run gives no deviation and no interval, and lr=0.03 has only one that is
done.

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
    return compare(read(paths), **choices)


def printed(made: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    show(made, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def notes(made: Report) -> list[str]:
    return [note for table in tables(made) for note in table.notes]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=20)


def test_on_a_terminal(sweep: Path) -> None:
    assert printed(report(sweep)) == TERMINAL


def test_the_documented_example(tmp_path: Path) -> None:
    made = report(grid(tmp_path / "rates", arms=4, seeds=4).path)
    documented = (
        (Path(__file__).parents[2] / "docs" / "reports.md")
        .read_text(encoding="utf-8")
        .replace("\n    ", "\n")
    )
    assert f"\n{printed(made)}written: sweeps/rates/report/index.html, " in documented


def test_as_markdown(sweep: Path) -> None:
    made = report(sweep)
    text = markdown(made)
    assert text.startswith("# rates\n\n10 runs in 3 arms: ")
    assert MARKDOWN in text
    for table in tables(made):
        assert f"## {table.title}\n\n| {table.heads[0]} | " in text


def test_as_csv(sweep: Path) -> None:
    made = report(sweep)
    arms = list(csv.DictReader(io.StringIO(csv_text(arm_rows(made)))))
    assert [row["arm"] for row in arms] == ["lr=0.001", "lr=0.002", "lr=0.03"]
    assert [row.summary and row.summary.mean for row in made.rows] == [
        float(row["mean"]) for row in arms
    ]
    assert [row["deviation"] for row in arms][2] == arms[0]["difference"] == arms[2]["p"] == ""
    runs = list(csv.DictReader(io.StringIO(csv_text(run_rows(made)))))
    assert [(row["seed"], row["state"], row["step"]) for row in runs[6:]] == [
        ("1", "done", "200"),
        ("2", "failed", "50"),
        ("3", "running", "100"),
        ("4", "waiting", "0"),
    ]
    assert runs[7]["why"] == "the loss was not finite in 10 steps in a row | see <logs>"
    assert float(runs[0]["eval/loss"]) == made.runs[0].final["eval/loss"]
    assert (runs[9]["optimizer.lr"], runs[9]["eval/loss"]) == ("", "")


@pytest.mark.parametrize(
    "write", [printed, markdown, lambda made: csv_text(arm_rows(made)) + csv_text(run_rows(made))]
)
def test_one_seed_is_said_and_no_nan_is_printed(example: Example, write) -> None:
    for rate in ("0.001", "0.002"):
        example.done([f"optimizer.lr={rate}"], seed=1)
    made = report(example.sweep.path)
    assert "nan" not in write(made).lower().replace("finance", "")
    assert (
        "One run gives no deviation and no interval, and every arm has only one that is done."
        in notes(made)
    )
    assert len(headline(made)) == 2
    assert "Without interval and p-value: one seed." in notes(
        report(example.sweep.path, baseline="lr=0.001")
    )


@pytest.mark.parametrize("metric", ["eval/loss", "eval/token_accuracy"])
def test_one_run_of_each_is_ranked_and_not_compared(example: Example, metric: str) -> None:
    for rate, gain in ((1, 0.2), (2, 0.4), (3, 0.0)):
        example.done([f"optimizer.lr=0.00{rate}"], seed=1, gain=gain)
    example.waiting(["optimizer.lr=0.004"], seed=1)
    made = report(example.sweep.path, metric=metric)
    assert [table.name for table in tables(made)] == ["arms", "configs", "unfinished"]
    assert [line[0] for line in tables(made)[0].lines] == [
        "lr=0.002",
        "lr=0.001",
        "lr=0.003",
        "lr=0.004",
    ]
    assert (tables(made)[0].heads, notes(made)[0][-9:]) == (("arm", "done", "value"), "s better.")
    assert tables(made)[1].heads[1] == "differs from lr=0.002, the best, in"
    assert tables(made)[1].lines[0] == ("lr=0.001", "optimizer.lr: 0.002 → 0.001")
    assert [one["difference"] for one in page_data(made)["arms"]] == [None] * 4
    assert [(row["baseline"], row["difference"], row["target"]) for row in arm_rows(made)] == [
        (False, None, None)
    ] * 4
    asked = tables(report(example.sweep.path, metric=metric, reach=0.1 if made.higher else 9.0))
    assert [line[:2] for line in asked[1].lines] == [
        ("lr=0.002", "1 of 1"),
        ("lr=0.001", "1 of 1"),
        ("lr=0.003", "1 of 1"),
    ]
    compared = tables(report(example.sweep.path, metric=metric, baseline="lr=0.001"))
    assert [table.name for table in compared] == [
        "arms",
        "differences",
        "reach",
        "configs",
        "unfinished",
    ]
    assert [line[0] for line in compared[0].lines] == [
        "lr=0.001 (baseline)",
        "lr=0.002",
        "lr=0.003",
        "lr=0.004",
    ]


def test_of_many_arms_the_best_are_ranked(example: Example) -> None:
    for rate, gain in ((1, 0.0), (2, 0.4), (3, 0.3), (4, 0.1)):
        example.done([f"optimizer.lr=0.00{rate}"], seed=1, gain=gain)
    for rate in (5, 6):
        example.partial([f"optimizer.lr=0.00{rate}"], seed=1, at=10)
    example.failed(["optimizer.lr=0.007"], seed=1, at=10, why="out of memory")
    made = report(example.sweep.path)
    first, configs, left = tables(made, 2)
    assert [line[0] for line in first.lines] == ["lr=0.002", "lr=0.003"]
    assert first.notes[0] == "The best 2 of 7 arms; all of them: --top 7, or arms.csv (--csv FILE)."
    assert configs.notes == first.notes[:1]
    assert [line[3] for line in left.lines] == ["failed", "partial"]
    assert left.notes == [
        "2 of 3 runs, those that failed first; all of them: --top 3, or runs.csv (--runs-csv FILE)."
    ]
    assert len(tables(made)[2].lines) == 3
    assert runs_table(made, 2).notes == ["The first 2 of 7 runs; runs.csv has all."]
    assert len(arm_rows(made)) == 7


def test_of_many_arms_the_best_are_compared(example: Example) -> None:
    for rate, gain in ((1, 0.0), (2, -0.3), (3, 0.3), (4, 0.1)):
        for seed in (1, 2):
            example.done([f"optimizer.lr=0.00{rate}"], seed=seed, gain=gain)
    made = report(example.sweep.path)
    assert [row.name for row in made.shown(3)] == [row.name for row in made.rows]
    found = {table.name: table for table in tables(made, 2)}
    assert [line[0] for line in found["arms"].lines] == [
        "lr=0.001 (baseline)",
        "lr=0.003",
        "lr=0.004",
    ]
    assert (
        [line[0] for line in found["differences"].lines]
        == [line[0] for line in found["configs"].lines]
        == ["lr=0.003", "lr=0.004"]
    )
    assert (
        found["reach"].notes[0]
        == "The baseline and the best 2 of 3 other arms; all of them: --top 3, or arms.csv (--csv FILE)."
    )
    assert "p (Holm) is corrected for 3 comparisons." in found["differences"].notes[-1]


def test_runs_that_did_not_train_as_long_are_said(example: Example) -> None:
    example.done(["optimizer.lr=0.001"], seed=1)
    example.done(["optimizer.lr=0.002"], seed=1)
    assert not [note for note in notes(report(example.sweep.path)) if "as long" in note]
    example.steps = 1200
    longer = example.done(["optimizer.lr=0.003"], seed=1).path / "result.json"
    assert (
        notes(report(example.sweep.path))[1]
        == "The runs did not all train as long: 20 to 1,200 steps."
    )
    longer.write_text(longer.read_text().replace('"reason": "end"', '"reason": "patience"'))
    said = "The runs did not all train as long: 20 to 1,200 steps (1 ended by patience)."
    assert notes(report(example.sweep.path))[1] == said


def test_seeds_that_do_not_pair_are_said(example: Example) -> None:
    for rate, seeds in (("0.001", (1, 2, 3)), ("0.002", (4, 5, 6))):
        for seed in seeds:
            example.done([f"optimizer.lr={rate}"], seed=seed)
    assert (
        "Welch: too few seeds are common to pair by, so it is a t-test of unequal variances (ttest_ind)."
        in notes(report(example.sweep.path))
    )


def test_holm_is_said_for_several_arms(example: Example) -> None:
    for rate in ("0.001", "0.002", "0.003"):
        for seed in (1, 2):
            example.done([f"optimizer.lr={rate}"], seed=seed)
    said = notes(report(example.sweep.path))
    assert (
        "p is two-sided; p (Holm) is corrected for 2 comparisons. The intervals are of 95 % each, uncorrected."
        in said
    )


def test_a_baseline_without_a_run(example: Example) -> None:
    example.waiting(["optimizer.lr=0.001"], seed=1)
    example.done(["optimizer.lr=0.002"], seed=1)
    made = report(example.sweep.path, baseline="lr=0.001")
    assert (
        "The baseline lr=0.001 has no run that is done, so nothing is compared with it."
        in notes(made)
    )
    assert [table.name for table in tables(made)] == ["arms", "unfinished"]
    assert made.target is None


def test_a_run_without_a_value(example: Example) -> None:
    example.done([], seed=1)
    (example.done([], seed=2).path / "result.json").write_text(
        '{"status": "finished", "reason": "end", "step": 20, "config": "config.yaml", "objective": {"value": null}, "metrics": {}}'
    )
    table = tables(report(example.sweep.path))[-1]
    assert table.lines == [("001", "sweep", "2", "done", "it has no value of eval/loss")]
    assert (
        headline(report(example.sweep.path))[0]
        == "2 runs in 1 arm: 2 done; 1 of those done without a value of eval/loss."
    )
    assert notes(report(example.sweep.path))[1:3] == [
        "1 run is done without a value of eval/loss, which does not count here.",
        "One run gives no deviation and no interval.",
    ]


def test_a_run_whose_config_is_damaged(example: Example) -> None:
    example.done([], seed=1)
    broken = example.done([], seed=2).path / "config.yaml"
    broken.write_text("a: [")
    (line,) = tables(report(example.sweep.path))[-1].lines
    assert (line[0], line[3]) == ("001", "failed")
    assert line[4].startswith(f"{broken} cannot be read: ")


def test_a_cluster_that_does_not_answer(sweep: Path) -> None:
    made = report(sweep)
    made = replace(made, source=replace(made.source, silent="squeue timed out"))
    assert tables(made)[-1].notes == [
        "Slurm does not answer, so its jobs are shown as their directories have them: squeue timed out"
    ]


def test_the_best_arm_is_found_among_the_same_seeds(example: Example) -> None:
    """Seed 3 is the worst in every arm: of it alone, the better arm has the higher mean."""
    for seed in (1, 2, 3):
        example.done(["optimizer.lr=0.001"], seed=seed)
    example.done(["optimizer.lr=0.002"], seed=3, gain=0.02)
    made = report(example.sweep.path)
    means = [row.summary.mean for row in made.rows if row.summary]
    assert means[1] > means[0]
    assert headline(made)[1].endswith(", lr=0.002.")


def test_verdicts_of_many_arms(sweep: Path) -> None:
    assert (
        headline(report(sweep, baseline="lr=0.002"))[2]
        == "Against lr=0.002, at 5 %: lr=0.001 is worse."
    )
    assert headline(report(sweep, metric="eval/token_accuracy"))[1:] == [
        "Best eval/token_accuracy: 0.182308, lr=0.002.",
        "Against lr=0.001, at 5 %: lr=0.002 is better.",
    ]


@pytest.mark.parametrize(
    ("spreads", "values", "value", "text"),
    [
        ([0.03, 0.029], [4.2], 4.29613, "4.2961"),
        ([120.0], [3949.0], 3949.43, "3,949"),
        ([0.0], [4.5, 4.1], 4.48765, "4.488"),
        ([], [11284.0], 11284.2, "11,284"),
        ([], [4.2], 4.26949, "4.269"),
        ([2e-7], [1e-5], 1.234567e-5, "0.000012346"),
        ([0.03], [4.2], -0.00001, "0.0000"),
        ([0.0], [0.0], 0.0, "0.00"),
    ],
)
def test_decimals_follow_the_spread(
    spreads: list[float], values: list[float], value: float, text: str
) -> None:
    assert Decimals.of(spreads, values).number(value) == text


def test_counts_durations_and_p_values() -> None:
    assert [compact(n) for n in (0, 950, 1234, 1_638_400, 2.5e9, None)] == [
        "0",
        "950",
        "1.23k",
        "1.64M",
        "2.5B",
        "–",
    ]
    assert [duration(s) for s in (0.4, 48.0, 130.0, 9000.0, 3e5, None)] == [
        "0.4 s",
        "48 s",
        "2.17 min",
        "2.5 h",
        "3.47 d",
        "–",
    ]
    assert [p_value(p) for p in (0.00001, 0.00123, 0.0456, 0.5, 1.0, None)] == [
        "<0.0001",
        "0.0012",
        "0.046",
        "0.50",
        "1.00",
        "–",
    ]
