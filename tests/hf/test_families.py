"""Every family against transformers' own tiny random model, through a folder that it wrote."""

from __future__ import annotations

import pytest
from families import measured, outside
from tiny_families import CASES

from forge.families import folder as folders


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_does(case: str) -> None:
    assert not outside(case, measured(case))


def test_every_family_has_a_case() -> None:
    known = {one.model_type for one in folders.all_families()}
    assert {make().model_type for make in CASES.values()} == known
