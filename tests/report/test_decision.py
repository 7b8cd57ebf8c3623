"""Question and decision rule: stated before a sweep runs, kept, and judged by its report."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_sweep import Example

from forge.config.problems import ConfigError
from forge.launch.sweep.preflight import Preflight
from forge.report.comparison import compare_arms
from forge.report.decision import FAILS, HOLDS, OPEN, verdict
from forge.report.runs import read_source
from forge.report.statistics import Difference
from forge.report.tables import headline
from forge.resolve.decision import Decision, parse

PLAN = {"question": "Does the higher rate help?", "hypothesis": "By 0.1 nats."}
RULE = "optimizer.lr=2e-3 beats optimizer.lr=1e-3 by 0.1"
READ = {
    "lr=1e-3 beats lr=1e-4 by 0.01": ("lr=1e-3", "lr=1e-4", 0.01),
    "wide  beats base": ("wide", "base", 0.0),
    "wide is no worse than base by 0.005": ("wide", "base", -0.005),
}
UNREADABLE = ("", "wide", "wide is no worse than base", "a beats a", "a beats b by x")
UNREADABLE += ("a beats b by -1", "a beats b by inf", "a beats b by nan")


@pytest.mark.parametrize("text", READ)
def test_a_rule_is_read(text: str) -> None:
    first, second, margin = READ[text]
    assert parse(text) == Decision(first=first, second=second, margin=margin)


@pytest.mark.parametrize("text", UNREADABLE)
def test_others_are_not(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("low", "high", "margin", "expected"),
    [
        (-0.30, -0.20, 0.1, HOLDS),
        (-0.30, -0.05, 0.1, OPEN),
        (-0.05, 0.02, 0.1, FAILS),
        (-0.02, 0.01, -0.05, HOLDS),
        (-0.02, 0.09, -0.05, OPEN),
        (0.06, 0.09, -0.05, FAILS),
    ],
)
def test_the_verdict_is_that_of_the_interval(
    low: float, high: float, margin: float, expected: str
) -> None:
    """Of a loss: the first is better by as much as the difference is below zero."""
    rule = Decision(first="a", second="b", margin=margin)
    assert verdict(rule, Difference(mean=0.0, low=low, high=high), higher=False) == expected
    swapped = Difference(mean=0.0, low=-high, high=-low)
    assert verdict(rule, swapped, higher=True) == expected


@pytest.mark.parametrize(("gain", "word"), [(0.3, HOLDS), (0.0, FAILS)])
def test_a_report_judges_it(tmp_path: Path, gain: float, word: str) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    example.sweep.begin([], plan={**PLAN, "decision": RULE})
    for seed in (1, 2, 3):
        example.done(["optimizer.lr=0.001"], seed=seed)
        example.done(["optimizer.lr=0.002"], seed=seed, gain=gain)
    question, judged, *_ = headline(compare_arms(read_source([example.sweep.path])))
    assert question == "Does the higher rate help? Expected: By 0.1 nats."
    assert judged.startswith(f"{RULE}: {word} (eval/loss ")
    assert "stated after" not in judged


def test_a_grid_is_judged_by_its_paired_effect(tmp_path: Path) -> None:
    example = Example(tmp_path / "sweep", steps=20)
    for norm, gain in (("true", 0.2), ("false", 0.0)):
        for rate in ("0.001", "0.002"):
            for seed in (1, 2, 3):
                example.done(
                    [f"model.qk_norm={norm}", f"optimizer.lr={rate}"], seed=seed, gain=gain
                )
    example.sweep.begin([], plan={"decision": "qk_norm=true beats qk_norm=false by 0.1"})
    report = compare_arms(read_source([example.sweep.path]), baseline="qk_norm=false")
    judged = headline(report)[0]
    effect = report.factors[0].effects[0].difference
    assert f"holds (eval/loss {report.decimals.signed(effect.mean)}, " in judged
    assert judged.endswith("; stated after 12 of the runs had ended.")


def test_it_is_kept_as_first_stated(tmp_path: Path) -> None:
    sweep = Example(tmp_path / "sweep", steps=20).sweep
    sweep.begin([], plan=PLAN)
    sweep.begin([], plan={**PLAN, "decision": RULE})
    assert {name: sweep.plan()[name] for name in (*PLAN, "decision")} == {**PLAN, "decision": RULE}
    sweep.agree(PLAN)
    with pytest.raises(ConfigError) as caught:
        sweep.agree({"question": "Another?"})
    (problem,) = caught.value.problems
    assert problem.key == "sweep.question=Another?"
    assert problem.what == "this sweep was begun with another: Does the higher rate help?"


def test_a_rule_about_values_that_are_not_there_is_refused() -> None:
    words = ["model=tiny", "run.device=cpu", "optimizer.lr=1e-3,2e-3", "seed=1,2"]
    assert len(Preflight([*words, f"sweep.decision='{RULE}'"]).points()) == 4
    with pytest.raises(ConfigError) as caught:
        Preflight([*words, "sweep.decision='lr=1e-3 beats lr=5e-3'"]).points()
    (problem,) = caught.value.problems
    assert (problem.key, problem.what) == (
        "sweep.decision",
        "this sweep has no arm or value 'lr=5e-3'.",
    )
