"""ORPO, SimPO, KTO and QLoRA have TRL's losses where they compute the same."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import preferences_beside_trl as beside
import pytest


@pytest.mark.nightly
def test_losses_of_steps_equal_those_of_trl_and_peft(tmp_path: Path) -> None:
    how = Namespace(rate=beside.RATE, batch=beside.ROWS, length=beside.LENGTH, steps=3, threads=1)
    losses = beside.compare(tmp_path, how)
    assert set(losses) == {"ORPO", "SimPO", "KTO", "QLoRA"}
    for name, by_side in losses.items():
        assert len(by_side["forge"]) == 3
        assert beside.difference(by_side["forge"], list(by_side.values())[-1]) < 1e-5, name
