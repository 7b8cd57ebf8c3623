"""Updates of our own optimizers that are to be skipped on the device."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from updates import groups_of, set_gradients

from forge.config.optimizers import adam, schedule_free, sgd
from forge.config.optimizers.low_bit import AdamWLowBit
from forge.optim.adam import Adam, AdamPax
from forge.optim.elementwise import Elementwise
from forge.optim.schedule_free import ScheduleFreeAdamW
from forge.optim.sgd import SGD

ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
KINDS = {
    "adam": lambda groups: Adam(groups, adam.Adam(**ADAM, eps_root=1e-6, cautious=True)),
    "adam_bf16": lambda groups: Adam(groups, adam.Adam(**ADAM, mu_dtype="bf16", nu_dtype="bf16")),
    "adam_pax": lambda groups: AdamPax(groups, adam.AdamPax(**ADAM)),
    "sgd": lambda groups: SGD(groups, sgd.SGD(lr=0.01, weight_decay=0.0)),
    "sgd_momentum": lambda groups: SGD(
        groups, sgd.SGD(lr=0.01, weight_decay=0.0, momentum=0.9, nesterov=True)
    ),
    "schedule_free": lambda groups: ScheduleFreeAdamW(
        groups, schedule_free.ScheduleFreeAdamW(**ADAM, schedule_free_warmup_steps=3)
    ),
}


def low_bit(kind: str):
    def make(groups):
        from forge.optim.low_bit import LowBitAdamW

        return LowBitAdamW(groups, AdamWLowBit(**ADAM, state_format=kind))

    return make


KINDS |= {kind: low_bit(kind) for kind in ("8bit", "4bit", "fp8")}


def all_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    found = [value for p in weights for value in optimizer.state[p].values()]
    return [tensor.detach().clone() for tensor in [*weights, *found]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_such_an_update_changes_no_bit_and_equals_one_left_out(kind, value):
    """Also if it is the first; the others are as those of an optimizer that skips on the host."""
    skipped, plain = KINDS[kind](larger()), KINDS[kind](larger())
    assert isinstance(skipped, Elementwise)
    assert skipped._step_supports_amp_scaling
    for step in range(5):
        bad = step in (0, 3)
        for optimizer in (skipped, plain):
            set_gradients([p for g in optimizer.param_groups for p in g["params"]], step)
        before = all_tensors(skipped)
        if bad:
            skipped.param_groups[0]["params"][0].grad.fill_(value)
        else:
            plain.step()
        skipped.found_inf = torch.tensor(float(bad))
        skipped.step()
        if bad and step:
            assert all(map(torch.equal, all_tensors(skipped), before))
    pairs = list(zip(all_tensors(skipped), all_tensors(plain), strict=True))
    for ours, theirs in pairs:  # numbers times a tensor are rounded, those times a float are not
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-6, atol=1e-7)


def larger():
    """A matrix whose moments are quantized too."""
    groups = groups_of(torch.float32)
    torch.manual_seed(0)
    groups[0]["params"].append(torch.nn.Parameter(torch.randn(32, 256)))
    return groups


@pytest.mark.parametrize("kind", KINDS)
def test_state_that_is_loaded_keeps_its_formats(kind):
    optimizer, other = KINDS[kind](larger()), KINDS[kind](larger())
    parameters, theirs = (
        [p for g in o.param_groups for p in g["params"]] for o in (optimizer, other)
    )
    for step in range(3):
        set_gradients(parameters, step)
        optimizer.step()
    for parameter, another in zip(parameters, theirs, strict=True):
        another.data.copy_(parameter)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    for one, parts in ((optimizer, parameters), (other, theirs)):
        for step in range(3, 6):
            set_gradients(parts, step)
            one.step()
    pairs = list(zip(all_tensors(optimizer), all_tensors(other), strict=True))
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
