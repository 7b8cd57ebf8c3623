"""Every option of every family against transformers, into folders: a file of its own, since a
worker of the tests takes whole files.
"""

from __future__ import annotations

from pathlib import Path

import option_matrix as matrix
import option_matrix_written as written
import pytest
from tiny_families import CASES


@pytest.mark.slow  # so that its file begins first
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_every_change_of_a_model_is_read_by_transformers_or_refused(
    case: str, tmp_path: Path
) -> None:
    with matrix.quiet():
        found = list(written.exports(case, tmp_path))
    assert [each for each in found if each.wrong(case)] == []
    assert sum(each.outcome == "read" for each in found) > 50
