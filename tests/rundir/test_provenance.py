"""What a run was made with."""

from __future__ import annotations

import pytest

from forge.rundir import provenance


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/a/forge/train.py", "a=[1,2]", "b=1"], "python -m forge.train 'a=[1,2]' b=1"),
        (["/a/forge/parity/__main__.py", "b=1"], "python -m forge.parity b=1"),
        (["/a/bin/forge", "train", "b=1"], "forge train b=1"),
        (["mine.py", "b=1"], "mine.py b=1"),
        (["-c"], "-c"),
    ],
)
def test_the_command_of_arguments(argv: list[str], command: str) -> None:
    assert provenance.typed_command(argv) == command
