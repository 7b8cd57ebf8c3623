"""One of four ranks is frozen by SIGSTOP: it is named within a minute of the limit."""

from __future__ import annotations

import os
from pathlib import Path

import frozen_rank
import pytest


@pytest.mark.nightly
def test_it_is_named_with_the_collective_that_the_others_wait_in(
    text_file: Path, tmp_path: Path
) -> None:
    """By the log and by forge.status, with the stacks of all ranks; let go, the run continues."""
    words = ["data=text", f"data.path={text_file}"]
    named = frozen_rank.show(tmp_path, words, dict(os.environ))
    print(named.log, named.status)
    assert not named.faults()
    assert str(tmp_path / "run" / "stacks") in named.log[1]
