"""Mixtures of experts on every layout: what one device computes, the same choices, and the same
selection biases to the bit.
"""

from __future__ import annotations

import pytest
import torch
from parity_cases import MOE_CASES, Case
from parity_run import STEPS, Tokens, config_of, on_one_device, outcomes
from test_parity import marked

from forge.parallel.ranks import Ranks
from forge.training.assemble import train_loader


@pytest.mark.parametrize("case", [marked(case) for case in MOE_CASES])
def test_a_layout_equals_one_device(case: Case) -> None:
    found = outcomes(case)
    assert [outcome.dtype for outcome in found] == ["float64", "float32"]
    assert not any(outcome.faults for outcome in found), "\n\n".join(
        outcome.shown for outcome in found
    )
    assert all(outcome.same_state for outcome in found)
    assert {outcome.same_choices for outcome in found} == {
        None if "compile" in case.layout else True
    }


def test_choices_are_seen_and_biases_move() -> None:
    """What the comparison above rests on."""
    config, steps = config_of("moe"), STEPS[torch.float64]
    record, choices = on_one_device("moe", torch.float64)
    assert choices is not None
    assert len(record.state) == 3
    assert all(value is not None and len(value.unique()) > 2 for value in record.state.values())
    read = torch.zeros(301, dtype=torch.int64)
    for _, step in zip(
        range(steps), train_loader(config, Tokens(), Ranks(), torch.device("cpu")), strict=False
    ):  # type: ignore[arg-type]
        for batch in step.batches:
            read += torch.bincount(batch.tokens.flatten(), minlength=301)
    assert all(torch.equal(layer.sum(1), 2 * read) for layer in choices)
    assert not torch.equal(choices[0], choices[1])
