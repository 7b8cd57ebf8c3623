"""Queries, keys and values, and a gate beside its other factor, made by one product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.attention import Attention
from forge.models.feed_forward import FeedForward
from forge.tensors.joined_product import joined_product

ATEN = torch.ops.aten


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (ATEN.mm.default, ATEN.addmm.default)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("biased", [(False, False, False), (True, False, True)])
def test_values_and_gradients_are_those_of_separate_products(biased) -> None:
    torch.manual_seed(0)
    layers = [
        nn.Linear(7, rows, bias=bias, dtype=torch.float64)
        for rows, bias in zip((12, 5, 3), biased, strict=True)
    ]
    x = torch.randn(2, 4, 7, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(2, 4, len(layer.weight), dtype=torch.float64) for layer in layers]
    inputs = [x, *(p for layer in layers for p in layer.parameters())]

    def gradients(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
        return torch.autograd.grad(loss, inputs)  # type: ignore[arg-type]

    separate, joined = [layer(x) for layer in layers], joined_product(x, layers)
    torch.testing.assert_close(joined, separate, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradients(joined), gradients(separate), rtol=1e-13, atol=1e-13)


def test_frozen_matrices_get_no_gradient() -> None:
    layers = [nn.Linear(4, 3, bias=False), nn.Linear(4, 2, bias=False)]
    layers[0].weight.requires_grad = False
    x = torch.randn(5, 4)
    joined_product(x, layers)[1].sum().backward()
    assert layers[0].weight.grad is None
    torch.testing.assert_close(layers[1].weight.grad, x.sum(0).expand(2, 4))


@pytest.mark.parametrize(("layer", "separate"), [(Attention, 4), (FeedForward, 3)])
def test_a_layer_makes_one_product_of_its_first_matrices(layer, separate) -> None:
    """Of four or three products two remain, and in backward four of eight or six."""
    counts = {}
    for fused in (False, True):
        section = DecoderConfig(dim=16, n_layers=1, n_heads=2, fused_qkv=fused, fused_gate_up=fused)
        x = torch.randn(1, 6, 16, requires_grad=True)
        module = layer(section)
        with Products() as forward:
            y = module(x)
        with Products() as backward:
            y.sum().backward()
        counts[fused] = forward.count, backward.count
    assert counts == {False: (separate, 2 * separate), True: (2, 4)}
