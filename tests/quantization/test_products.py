"""Quantized products are those of the definitions of the formats, and of torchao."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from by_hand import SIX, products
from helpers.ranks import on_ranks
from torch import Tensor

from forge.config.quantization import FP8, MXFP8, QAT, Int8, Quantized
from forge.quantization import fp8, int8, mxfp8, qat
from forge.quantization.fp8_over_ranks import product_over_ranks
from forge.quantization.products import Blocks, Products

CPU = torch.device("cpu")


def made(kind: str, *, emulate: bool = True) -> Products:
    name, _, recipe = kind.partition(" ")
    sections: dict[str, Quantized] = {
        "fp8": FP8(recipe=recipe, emulate=emulate),
        "mxfp8": MXFP8(emulate=emulate),
        "int8": Int8(emulate=emulate),
    }
    classes = {"fp8": fp8.FP8, "mxfp8": mxfp8.MXFP8, "int8": int8.Int8}
    return classes[name](sections[name], CPU)  # type: ignore[arg-type]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Of sizes that differ by orders of magnitude, so that some fall below the least number."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw) * 10 ** (2 * torch.randn(shape, generator=draw))


def through(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, g: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of both factors."""
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = product(x, w)
    y.backward(g)
    assert x.grad is not None
    assert w.grad is not None
    return y.detach(), x.grad, w.grad


@pytest.mark.parametrize("kind", SIX)
def test_products_are_those_of_the_definition(kind: str) -> None:
    x, w, g = drawn(64, 96, seed=1), drawn(32, 96, seed=2), drawn(64, 32, seed=3)
    found = through(made(kind).linear, x, w, g)
    for ours, by_hand in zip(found, products(kind, x.numpy(), w.numpy(), g.numpy()), strict=True):
        np.testing.assert_allclose(ours, by_hand, rtol=1e-5, atol=1e-6 * np.abs(by_hand).max())
    plain = through(torch.nn.functional.linear, x, w, g)
    assert not torch.allclose(found[0], plain[0], rtol=1e-3, atol=1e-3), "nothing was rounded"


@pytest.mark.parametrize("kind", SIX)
def test_products_are_those_of_torchao(kind: str) -> None:
    x, w, g = drawn(2, 32, 96, seed=1), drawn(64, 96, seed=2), drawn(2, 32, 64, seed=3)
    found = through(made(kind).linear, x, w, g)
    for ours, theirs in zip(found, through(of_torchao(kind), x, w, g), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=float(theirs.abs().max()) * 1e-6)


def of_torchao(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """What runs on a GPU, where torchao emulates it or, of int8, has it for a CPU too."""
    if kind.startswith("fp8"):
        return fp8.ByTorchao(kind.partition(" ")[2], emulate=True)
    if kind == "int8":
        return made(kind, emulate=False).linear
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats import config
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    cast = (config.MXFP8Dim0CastKernelChoice.TORCH, config.MXFP8Dim1CastKernelChoice.TORCH)
    how = (32, KernelPreference.EMULATED, *cast, config.ScaleCalculationMode.RCEIL, False)
    return lambda x, w: mx_mm.apply(x, w, *[torch.float8_e4m3fn] * 3, *how)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in SIX if kind.startswith("fp8")])
def test_parts_of_a_weight_are_multiplied_like_the_whole(kind: str) -> None:
    """Outputs and gradients of two ranks together: those of torchao's product on one device."""
    x, w, g = drawn(2, 32, 96, seed=1), drawn(64, 96, seed=2), drawn(2, 32, 64, seed=3)
    recipe = kind.partition(" ")[2]
    whole = through(fp8.ByTorchao(recipe, emulate=True), x, w, g)

    def work(rank: int) -> None:
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]

        def part(values: Tensor, dim: int) -> Tensor:
            return values.chunk(2, dim)[rank].contiguous()

        for torchao in (True, False):
            for dim in (0, 1):

                def product(x: Tensor, w: Tensor, dim: int = dim, torchao: bool = torchao):
                    if torchao:
                        return product_over_ranks(x, w, recipe, dim, group, emulate=True)
                    return made(kind).over_ranks(dim, group).linear(x, w)

                mine = (part(x, -1), w, g) if dim else (x, w, part(g, -1))
                y, by_x, by_w = through(product, mine[0], part(w, dim), mine[2])
                if dim:
                    dist.all_reduce(y)
                    expected = whole[0], part(whole[1], -1), part(whole[2], 1)
                else:
                    dist.all_reduce(by_x)
                    expected = part(whole[0], -1), whole[1], part(whole[2], 0)
                for ours, theirs in zip((y, by_x, by_w), expected, strict=True):
                    most = float(theirs.abs().max())
                    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=most * 2e-6)

    on_ranks(2, work)


@pytest.mark.parametrize("kind", ["fp8 rowwise", "mxfp8", "int8"])
def test_experts_are_layers_of_their_rows(kind: str) -> None:
    """Each expert is a layer of its own rows; one has none, another more than a block."""
    counts, width = torch.tensor([5, 0, 40, 19]), 64
    x, w, g = drawn(64, width, seed=1), drawn(4, 32, width, seed=2), drawn(64, 32, seed=3)
    product, blocks = made(kind), Blocks(counts, 64)
    found = through(
        lambda x, w: blocks.empty(product.grouped(blocks.fill(x), w, blocks.counts)), x, w, g
    )
    starts = [0, *counts.cumsum(0).tolist()]
    for expert, (start, stop) in enumerate(pairwise(starts)):
        if start == stop:
            assert not found[2][expert].any()
            continue
        own = through(product.linear, x[start:stop], w[expert], g[start:stop])
        for ours, layer in zip((found[0][start:stop], found[1][start:stop]), own, strict=False):
            torch.testing.assert_close(ours, layer)
        torch.testing.assert_close(found[2][expert], own[2])


@pytest.mark.parametrize("bits", [4, 8])
def test_quantization_aware_training_is_that_of_torchao(bits: int) -> None:
    from torchao.quantization.qat import FakeQuantizedLinear, IntxFakeQuantizeConfig

    x, w, g = drawn(2, 8, 96, seed=1), drawn(32, 96, seed=2), drawn(2, 8, 32, seed=3)
    tokens = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    kind = getattr(torch, f"int{bits}")
    weights = IntxFakeQuantizeConfig(kind, group_size=32)
    theirs = FakeQuantizedLinear(96, 32, False, tokens, weights)

    def product(x: Tensor, w: Tensor) -> Tensor:
        del theirs.weight
        theirs.weight = w  # type: ignore[assignment]
        return theirs(x)

    found = through(qat.QAT(QAT(weight_bits=bits), CPU).linear, x, w, g)
    for ours, expected in zip(found, through(product, x, w, g), strict=True):
        torch.testing.assert_close(ours, expected)


def test_weights_of_four_bits_by_hand() -> None:
    """8 steps of a seventh and a half of the largest below 0, 7 above; what is cut off, none."""
    weight = torch.tensor([[-3.0, -1.0, 0.3, 0.6], [0.1, 7.5, -7.5, 3.4]], requires_grad=True)
    made = qat.of_groups(weight, 4, 4)
    made.sum().backward()
    expected = torch.tensor([[-3.2, -0.8, 0.4, 0.8], [0.0, 7.0, -8.0, 3.0]])
    torch.testing.assert_close(made.detach(), expected)
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1, 1, 1, 1], [1, 0, 1, 1]]
