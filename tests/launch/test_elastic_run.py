"""A run of four ranks, one of which is killed, continues with three and then with four again."""

from __future__ import annotations

import os
from pathlib import Path

import elastic_ranks
import pytest


@pytest.mark.nightly
def test_four_ranks_then_three_then_four(text_file: Path, tmp_path: Path) -> None:
    """Nobody types a thing; the loss of each step is that of a run left alone, within 1e-5."""
    words = ["data=text", f"data.path={text_file}"]
    shown = elastic_ranks.show(tmp_path, words, dict(os.environ))
    assert not shown.faults()
    assert "with 3 ranks" in shown.said
    assert "continuing, with 4 ranks" in shown.said
    assert shown.spent.starts == 3
    assert shown.spent.lost_steps >= 1
    assert "idle" not in shown.spent.seconds
