"""Weights in few bits on every layout: the same values, and what one device computes with them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "parallel"))

from parity_cases import Case, cases
from parity_run import outcomes

CASES = cases("""
tp2 x fsdp2 | tp=2 dp_shard=2 | qlora
fsdp2, compiled, full recompute | dp_shard=2 compiled recompute=full | qlora
fsdp2, selective recompute | dp_shard=2 recompute=selective | qlora
pp2 | pp2 | qlora
cp2 | cp=2 | qlora
tp2, int8 | tp=2 | qlora, int8
tp2 x fsdp2, one scale | tp=2 dp_shard=2 | qlora, one scale
fsdp2, cpu offload | dp_shard=2 offload | qlora
one device, full recompute, experts | recompute=full | qlora, moe
fsdp2, experts | dp_shard=2 | qlora, moe
ep2, experts | ep=2 | qlora, moe
ep2 x tp2, experts | ep=2 tp=2 | qlora, moe
pp2 x ep2, experts | pp2 ep=2 batch=4 | qlora, moe
ep2, experts with a capacity | ep=2 | qlora, moe, capacity
ep2 x fsdp2, experts | ep=2 dp_shard=2 batch=2 | qlora, moe
""")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if number == 0 else pytest.mark.nightly)
        for number, case in enumerate(CASES)
    ],
)
def test_a_layout_with_weights_in_few_bits_equals_one_device(case: Case) -> None:
    """The numbers before the first step, all codes among them, are equal to the bit."""
    (found,) = outcomes(case, ("float64",))
    assert not found.faults, found.shown
    assert found.same_state
