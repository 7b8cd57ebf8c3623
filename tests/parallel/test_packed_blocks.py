"""Documents kept apart in blocks on layouts: as by masks on one device."""

from __future__ import annotations

import pytest
import torch
from parity_cases import Case
from parity_run import on_one_device, outcomes
from torch.nn.attention import flex_attention

from forge.parallel import apply


@pytest.mark.ci("parallel.pp=2 parallel.pp_microbatches=2-packed kinds")
@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("parallel.dp_shard=2", "packed llama"),
        ("parallel.dp_shard=2 train.activation_checkpointing=selective", "packed kinds"),
        ("parallel.tp=2", "packed kinds"),
        ("parallel.pp=2 parallel.pp_microbatches=2", "packed kinds"),
        ("parallel.ep=2", "packed moe"),
        ("train.compile_model=true train.compile_backend=aot_eager", "packed kinds"),
    ],
)
def test_blocks_are_as_masks(layout: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_one_device(model, torch.float64)
    monkeypatch.setattr(apply, "in_blocks", lambda config, device: True)
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    case = Case(name="", layout=layout, model=model, formats=("float64",))
    (found,) = outcomes(case, case.formats)
    assert found.faults == [], found.shown
