"""What a step of the loop adds to a bare one, in operations of torch and calls of Python."""

from __future__ import annotations

from pathlib import Path

from helpers.tiny import TWO_LAYERS
from loop_overhead import counts

ADDED = 20  # on torch 2.13


def test_a_step_adds_few_operations(tmp_path: Path, text_file: Path) -> None:
    """Independent of the size of the model: the same layers run in both loops."""
    words = [*TWO_LAYERS, "metrics.log_interval=10", "data=text", f"data.path={text_file}"]
    measured = counts(" ".join([*words, "run.inline=true"]))
    (ours, our_calls), (bare, bare_calls) = measured["forge"], measured["bare"]
    assert bare["aten.mm.default"] > 10  # both have counted a whole step
    assert ours["aten.mm.default"] == bare["aten.mm.default"]
    assert bare.total() < ours.total() <= bare.total() + ADDED
    # torch's own clipping walks the modules, which the loop does once for a run.
    assert 0 < our_calls["call"] < bare_calls["call"]
