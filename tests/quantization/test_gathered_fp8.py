"""Products with weights gathered in fp8: torchao's numbers, and no second weight for backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forge.quantization.fp8 import ByTorchao

pytestmark = pytest.mark.nightly  # the compiler's import takes seconds


def factors(by_torchao: ByTorchao) -> tuple[Tensor, Tensor, Tensor]:
    """x [32, 64], a weight [96, 64] in fp8, and the memory of its codes."""
    torch.manual_seed(0)
    values, x = torch.randn(96, 64), torch.randn(32, 64, dtype=torch.bfloat16)
    scale = 448 / values.abs().max()
    codes = by_torchao.gathered.codes(values, scale)
    weight = by_torchao.gathered(codes, scale, torch.bfloat16)
    return x.requires_grad_(), weight.requires_grad_(), codes


@pytest.mark.parametrize("emulate", [False, True])
def test_values_and_gradients_are_those_of_torchao(emulate: bool) -> None:
    by_torchao = ByTorchao("tensorwise", emulate=emulate)
    x, weight, _ = factors(by_torchao)
    options = by_torchao.mm_config, by_torchao.config
    outputs = by_torchao(x, weight), by_torchao.product.apply(x, weight.t(), *options)
    gradient = torch.randn(32, 96, dtype=torch.bfloat16)
    ours, theirs = (torch.autograd.grad(y, (x, weight), gradient) for y in outputs)
    assert torch.equal(*outputs)
    assert all(map(torch.equal, ours, theirs))
    assert ours[1].shape == weight.shape


def test_a_compiled_product_keeps_the_gathered_memory_alone() -> None:
    """FSDP frees the memory between forward and backward; a copy would stay."""
    by_torchao = ByTorchao("tensorwise", emulate=False)
    x, weight, codes = factors(by_torchao)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return by_torchao(x.sin(), weight).sin()

    def packed(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    saved: list[Tensor] = []
    compiled = torch.compile(function, backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        y = compiled(x, weight)
    in_fp8 = [tensor for tensor in saved if tensor.dtype.itemsize == 1]
    assert [tensor.data_ptr() for tensor in in_fp8] == [codes.data_ptr()]
    expected = function(x, weight)
    gradient = torch.randn_like(y)
    compiled_gradients, gradients = (
        torch.autograd.grad(result, (x, weight), gradient) for result in (y, expected)
    )
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(compiled_gradients, gradients)
