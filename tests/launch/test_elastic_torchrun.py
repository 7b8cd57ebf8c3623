"""An elastic run under torchrun: two nodes, then one, then two again; nobody types a thing."""

from __future__ import annotations

from pathlib import Path

import elastic_launchers
import pytest
from elastic_launchers import Run, environment, left_alone, options

STEPS = 60


@pytest.mark.nightly
def test_two_nodes_then_one_then_two(text_file: Path, tmp_path: Path) -> None:
    """A node is killed with all its processes; later another comes. Same samples, and the loss of
    each step is that of a run left alone, within 1e-5.

    Steps are slow until the last node trains, whatever else the machine does.
    """
    words = [*options(STEPS), "data=text", f"data.path={text_file}"]
    words = [word for word in words if not word.startswith("train.batch_size")]
    words.append("train.batch_size=6")
    env, run = environment(tmp_path), Run(tmp_path / "run")
    alone = left_alone(tmp_path / "alone", words, env, ranks=2)
    printed = elastic_launchers.under_torchrun(run, words, env, sizes=(2, 1, 2))
    compared = run.compared(alone)
    assert not compared.faults((2, 1, 2), STEPS), printed
    assert compared.spent.seconds["restart"] > 0
    assert "idle" not in compared.spent.seconds
