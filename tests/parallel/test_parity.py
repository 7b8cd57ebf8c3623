"""Every layout computes what one device does.

Initial weights to the bit; losses, gradients and weights after updates up to rounding; of mixtures
of experts also the choices, and selection biases to the bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bf16_cases import BF16_CASES
from exchange_cases import GATHERED_CASES, OVERLAPPED_CASES, REGATHERED_CASES, RING_CASES
from hybrid_cases import HYBRID_CASES
from parity_cases import ADAPTER_CASES, CASES, MOE_CASES
from parity_models import FLOAT64_ALONE
from parity_run import (
    FORMATS,
    STEPS,
    Tokens,
    config_of,
    distance_in_bf16,
    on_one_device,
    outcomes,
)
from refused_layouts import REFUSED

from forge.build import build
from forge.config.problems import ConfigError
from forge.parallel.ranks import Ranks
from forge.training.data import train_loader

WITH_EXPERTS = [*MOE_CASES, *GATHERED_CASES, *OVERLAPPED_CASES]
DENSE = [*CASES, *REGATHERED_CASES]
ALL = [*DENSE, *RING_CASES, *HYBRID_CASES, *ADAPTER_CASES, *WITH_EXPERTS]


def params():
    """Of each layout the formats of `make test`, and the other ones for `make nightly`."""
    for case in ALL:
        tried = FORMATS[:1] if case.model in FLOAT64_ALONE else FORMATS
        rest = tuple(name for name in tried if name not in case.formats)
        if case.formats:
            yield pytest.param(case, case.formats, id=case.name)
        if rest:
            marks = [pytest.mark.nightly]
            yield pytest.param(case, rest, id=f"{case.name}, {' '.join(rest)}", marks=marks)


@pytest.mark.parametrize(("case", "formats"), list(params()))
def test_a_layout_equals_one_device(case, formats) -> None:
    found = outcomes(case, formats)
    assert tuple(outcome.dtype for outcome in found) == formats
    assert not any(outcome.faults for outcome in found), "\n\n".join(each.shown for each in found)
    seen = case in WITH_EXPERTS and "compile_model" not in case.layout
    assert all(outcome.same_state for outcome in found)
    assert {outcome.same_choices for outcome in found} == {True if seen else None}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name == "tp2" else pytest.mark.nightly)
        for case in BF16_CASES
    ],
)
def test_a_layout_in_bf16_is_as_far_from_fp32_as_one_device(case) -> None:
    """It rounds the same things, and no others."""
    one = distance_in_bf16(case.model, case.both)
    many = distance_in_bf16(case.model, f"{case.both} {case.layout}")
    assert 1e-3 < one.gradient < 0.1, "bf16 was not used"
    assert many.gradient <= 1.1 * one.gradient
    assert many.weights <= 1.1 * one.weights
    assert many.loss <= 0.01


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_hold_is_refused(case) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(case.model, case.layout)
    assert case.rule in {problem.rule for problem in caught.value.problems}


def test_choices_are_seen_and_biases_move() -> None:
    """Without it the comparison of choices would compare nothing."""
    config, steps = config_of("moe"), STEPS[torch.float64]
    record, choices = on_one_device("moe", torch.float64)
    assert choices is not None
    assert len(record.state) == 3
    assert all(value is not None and len(value.unique()) > 2 for value in record.state.values())
    read = torch.zeros(301, dtype=torch.int64)
    objective, tokens = build(config.objective, path="objective"), Tokens()
    loader = train_loader(config, tokens, objective, Ranks(), torch.device("cpu"))  # type: ignore[arg-type]
    for _, step in zip(range(steps), loader, strict=False):
        for batch in step.batches:
            read += torch.bincount(batch["tokens"].flatten(), minlength=301)
    assert all(torch.equal(layer.sum(1), 2 * read) for layer in choices)
    assert not torch.equal(choices[0], choices[1])


def test_the_committed_table_has_every_layout() -> None:
    """benchmarks/parity/parity_table.py makes it."""
    table = Path(__file__).parents[2] / "benchmarks" / "results" / "parity.md"
    lines = table.read_text(encoding="utf-8").splitlines()
    held = [line for line in lines if line.endswith("| yes |")]
    starts = [f"| {case.name} | {case.model} | `{case.layout}` |" for case in ALL]
    assert [line[: len(start)] for line, start in zip(held, starts, strict=True)] == starts
    for case in REFUSED:
        assert any(
            line.startswith(f"| {case.name} | `{case.layout}` | `{case.rule}` |") for line in lines
        )
