"""Packed weights of an evaluation on a CPU: the products are those of the plain layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from forge.evaluation import packed_weights
from forge.evaluation.packed_weights import WORTH, weights_packed
from forge.models.head import Head


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 48, bias=False))


def packed(model: nn.Module, tokens: int = WORTH) -> list[nn.Module]:
    """The layers with packed weights inside."""
    with weights_packed(model, 8, tokens):
        layers = [layer for layer in model.modules() if "forward" in vars(layer)]
    assert not any("forward" in vars(layer) for layer in model.modules())
    return layers


@torch.no_grad()
def test_products_with_packed_weights_are_those_of_float64(model: nn.Sequential) -> None:
    inputs = [torch.randn(5, 64), torch.randn(2, 7, 64), torch.randn(3, 64, 4).transpose(1, 2)]
    states, wide = torch.randn(9, 48), torch.randn(301, 48)
    with weights_packed(model, 8, WORTH) as packer:
        outputs = [model(x) for x in inputs]
        head = packer(Head(wide))
        logits = head.logits(states)
        assert packer(Head(wide, product=lambda x, _: x)).logits(states) is states
    assert packer.packed is not None
    torch.testing.assert_close(
        logits.double(), states.double() @ wide.double().T, atol=1e-5, rtol=0
    )
    exact = model.double()
    for x, output in zip(inputs, outputs, strict=True):
        assert output.shape == exact(x.double()).shape
        torch.testing.assert_close(output.double(), exact(x.double()), atol=1e-6, rtol=0)


def test_only_plain_layers_in_fp32_with_much_to_read_are_packed(
    model: nn.Sequential, monkeypatch: Any
) -> None:
    class Scaled(nn.Linear):
        """A layer with a product of its own."""

    both = nn.ModuleList([model, Scaled(8, 8), nn.Linear(8, 8, dtype=torch.float64)])
    assert packed(both) == [model[0], model[2]]
    assert not packed(both, WORTH - 1)
    monkeypatch.setattr(packed_weights, "LARGEST", 100)
    assert not packed(both)


def test_weights_that_change_between_evaluations_are_read_anew(model: nn.Sequential) -> None:
    x = torch.randn(5, 64)
    for _ in range(2):
        with torch.no_grad(), weights_packed(model, 8, WORTH):
            inside = model(x)
        torch.testing.assert_close(inside, model(x).detach(), atol=1e-6, rtol=0)
        with torch.no_grad():
            next(model.parameters()).mul_(-2.0)
