"""In 16 bits a layout is as far from fp32 as one device is: it rounds the same things, and no
others.
"""

from __future__ import annotations

import pytest
from parity_cases import BF16_CASES, InBf16
from parity_run import distance_in_bf16

FACTOR = 1.1


@pytest.mark.parametrize("case", BF16_CASES, ids=lambda case: case.name)
def test_a_layout_is_as_far_from_fp32_as_one_device(case: InBf16) -> None:
    one, several = (
        distance_in_bf16(case.model, case.both),
        distance_in_bf16(case.model, f"{case.both} {case.layout}"),
    )
    assert 1e-3 < one.gradient < 0.1, "bf16 was not used"
    assert several.gradient <= FACTOR * one.gradient
    assert several.weights <= FACTOR * one.weights
    assert several.loss <= 0.01
