"""Every layout computes what one device does: initial weights to the bit; losses, gradients and
weights after updates up to rounding.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from parity_cases import CASES, MOE_CASES, REFUSED, Case, Refused
from parity_run import config_of, outcomes

from forge.config.problems import ConfigError


def marked(case: Case):
    return pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_a_layout_equals_one_device(case: Case) -> None:
    found = outcomes(case)
    assert [outcome.dtype for outcome in found] == ["float64", "float32"]
    assert not any(outcome.faults for outcome in found), "\n\n".join(
        outcome.shown for outcome in found
    )


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_hold_is_refused(case: Refused) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(case.model, case.layout)
    assert case.rule in {problem.rule for problem in caught.value.problems}


def test_the_committed_table_has_every_layout() -> None:
    """benchmarks/parity_table.py makes it."""
    lines = (
        (Path(__file__).parents[2] / "benchmarks" / "results" / "parity.md")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    held = [line for line in lines if line.endswith("| yes |")]
    cases = [*CASES, *MOE_CASES]
    assert len(held) == len(cases)
    assert all(
        line.startswith(f"| {case.name} | {case.model} | `{case.layout}` |")
        for line, case in zip(held, cases, strict=True)
    )
    assert all(
        any(line.startswith(f"| {case.name} | `{case.layout}` | `{case.rule}` |") for line in lines)
        for case in REFUSED
    )


def test_names_are_of_one_case_each() -> None:
    names = [case.name for case in [*CASES, *MOE_CASES, *REFUSED]]
    assert len(names) == len(set(names))
