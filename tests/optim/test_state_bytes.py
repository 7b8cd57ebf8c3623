"""The state that an optimizer is said to keep against that it has."""

from __future__ import annotations

import pytest
import torch

from forge.build import build
from forge.config.optimizers.adam import AdamPax, AdamW
from forge.config.optimizers.lion import Lion
from forge.config.optimizers.low_bit import AdamWLowBit
from forge.config.optimizers.muon import Muon, NorMuon
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW
from forge.config.optimizers.sgd import SGD

SECTIONS = [
    AdamW(),
    AdamW(mu_dtype="bf16"),
    AdamW(mu_dtype="bf16", nu_dtype="bf16"),
    AdamPax(),
    Lion(),
    SGD(),
    SGD(momentum=0.9),
    ScheduleFreeAdamW(),
    Muon(),
    NorMuon(),
    *(AdamWLowBit(state_format=kind) for kind in ("8bit", "4bit", "fp8")),
]
SHAPES = [(300, 384), (64, 1376), (128, 4096), (63, 64), (100, 50), (384,), (8, 64, 96)]
"""Blocks of 128, 32 and 256 values; too few; rows that do not divide; a vector; experts."""


CASES = [(each, shape) for each in SECTIONS for shape in SHAPES if len(shape) > 1 or not each.takes]


@pytest.mark.parametrize(("section", "shape"), CASES, ids=str)
def test_state_has_the_bytes_that_are_planned(section, shape):
    parameter = torch.nn.Parameter(torch.randn(shape))
    optimizer = build(section, path="optimizer", params=[{"params": [parameter]}])
    parameter.grad = torch.randn(shape)
    optimizer.step()
    state = optimizer.state[parameter]
    counters = ("step", "weight_sum")
    held = sum(value.nbytes for key, value in state.items() if key not in counters)
    assert section.state_bytes(shape) == held
