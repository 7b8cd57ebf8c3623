"""Every family against transformers' own tiny random model, through a folder that it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import CHECKS, Pair
from tiny_families import CASES


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_does(case: str, check: str, tmp_path: Path) -> None:
    measure, bound = CHECKS[check]
    assert measure(Pair(case, tmp_path)) <= bound
