"""Presets on a fake GPU: three steps each, against the bounds of tools/fake_gpu/bounds.json."""

from __future__ import annotations

import pytest
from fake_gpu import case as fake
from fake_gpu import check
from fake_gpu.cases import CASES, Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not fake.PYTHON.exists(), reason="no .venv-cuda: make cuda installs it"),
]
SMOKE = [case for case in CASES if case.smoke]


@pytest.mark.parametrize("case", SMOKE, ids=lambda case: case.name)
def test_a_preset_keeps_its_bounds(case: Case) -> None:
    bounds = check.load().get(case.name)
    assert list(check.problems(case, fake.run(case.argument()), bounds)) == []
