"""AdamW with moments of 8 and 4 bits against torchao's own, and in checkpoints."""

from __future__ import annotations

import pytest
import torch
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from updates import RATES, set_gradients

from forge.config.optimizers.low_bit import AdamWLowBit
from forge.optim.low_bit import LowBitAdamW

THEIRS = {"8bit": AdamW8bit, "4bit": AdamW4bit, "fp8": AdamWFp8}
OPTIONS = {"lr": 1.0, "betas": (0.8, 0.95), "eps": 1e-3}
SHAPES = [(16, 256), (3, 8, 512), (4, 64), (5000,)]
"""Two whose rows are whole blocks, a small one, and a vector."""


def parameters_of(shapes=SHAPES):
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]


def as_groups(parameters):
    return [
        {"params": parameters[:2], "weight_decay": 0.2},
        {"params": parameters[2:], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("kind", THEIRS)
def test_updates_and_codes_are_those_of_torchao(kind):
    """Where rows are whole blocks; theirs are called uncompiled, see torch_2.13 facts."""
    ours, theirs = parameters_of(), parameters_of()
    optimizer = LowBitAdamW(
        as_groups(ours), AdamWLowBit(**OPTIONS, weight_decay=0.0, state_format=kind)
    )
    reference = THEIRS[kind](as_groups(theirs), **OPTIONS)
    for step, rate in enumerate(RATES):
        for parameters in (ours, theirs):
            set_gradients(parameters, step)
        for group, their_group in zip(optimizer.param_groups, reference.param_groups, strict=True):
            group["lr"] = float(rate)
            their_group["lr"].fill_(rate)
        optimizer.step()
        with torch.compiler.set_stance("force_eager"):
            reference.step()
    # Their sums are in another order, so a value at the middle of two codes may get the other one.
    close = [torch.isclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours, theirs, strict=True)]
    assert all(share.double().mean() > 0.995 for share in close)
    assert all(map(torch.all, close[2:]))
    for index, (parameter, other) in enumerate(zip(ours, theirs, strict=True)):
        state, their_state = optimizer.state[parameter], reference.state[other]
        for name in ("exp_avg", "exp_avg_sq"):
            if index < 2:
                codes = state[f"{name}.codes"].view(torch.uint8).flatten()
                same = codes == their_state[name].codes.view(torch.uint8).flatten()
                assert same.double().mean() > 0.99
                scale = state[f"{name}.scale"].flatten()
                torch.testing.assert_close(scale, their_state[name].scale, rtol=1e-4, atol=0)
            elif index == 2:
                torch.testing.assert_close(state[name], their_state[name])
