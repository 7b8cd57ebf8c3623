"""Weights that are kept in few bits: their values, and layers that multiply with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import forge
from forge.adapters.formats import NF4, pack_weight, unpack
from forge.adapters.packed import packed_in
from forge.adapters.packed_layers import pack_weights
from forge.config.adapters.qlora import QLoRA
from forge.models.init import init_weights
from forge.models.plain import make_model
from forge.parallel.materialize import materialize

FORMATS = ("nf4", "nf4_double", "int8")
DTYPE = torch.float32


def qlora() -> QLoRA:
    return QLoRA()


def weights(rows: int = 6, columns: int = 1024) -> Tensor:
    """Rows of different lengths, one of zeros, and a block of zeros."""
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    made *= torch.arange(rows).unsqueeze(1)
    made[1, :64] = 0
    return made


def test_nf4_is_the_nearest_of_sixteen_values_times_the_largest_of_a_block():
    rows = weights()
    blocks = rows.numpy().astype(np.float64).reshape(6, -1, 64)
    scales = np.abs(blocks).max(-1, keepdims=True)
    table = np.array(NF4)
    nearest = np.abs((blocks / np.maximum(scales, 1e-38))[..., None] - table).argmin(-1)
    parts = pack_weight(rows, "nf4")
    codes = parts["codes"].numpy()
    assert np.array_equal(np.stack([codes >> 4, codes & 15], -1).reshape(6, -1, 64), nearest)
    made = unpack(parts, "nf4", torch.float64).numpy().reshape(6, -1, 64)
    assert np.allclose(made, table[nearest] * scales, rtol=1e-7)


def test_scales_in_8_bits_are_near_and_integers_are_rounded_rows():
    rows = weights()
    plain, double = pack_weight(rows, "nf4"), pack_weight(rows, "nf4_double")
    assert torch.equal(plain["codes"], double["codes"])
    assert double["scale_codes"].shape == plain["scales"].shape
    near, exact = (
        unpack(each, how, torch.float32) for how, each in (("nf4_double", double), ("nf4", plain))
    )
    assert (near - exact).norm() < 0.02 * exact.norm()
    whole = unpack(pack_weight(rows, "int8"), "int8", torch.float32)
    step = rows.abs().amax(-1, keepdim=True) / 127
    assert torch.allclose(whole, (rows / step.clamp(min=1e-38)).round() * step, atol=1e-6)


@pytest.mark.parametrize("how", FORMATS)
def test_rows_are_rounded_for_themselves(how: str):
    """So that a rank that has some has the values of all."""
    stack = torch.randn(3, 8, 128)
    whole = pack_weight(stack, how)
    for part, values in pack_weight(stack[1, 2:5], how).items():
        assert torch.equal(values, whole[part][1, 2:5])


@pytest.mark.parametrize(("preset", "how"), [("tiny", "nf4_double"), ("moe_tiny", "int8")])
def test_layers_multiply_with_what_the_codes_say_and_keep_no_copy(preset: str, how: str):
    """Against the plain layers with the same weights: outputs and gradients, of embeddings too."""
    section: Any = forge.compose({"model": preset, "model.vocab_size": 256}).model
    with torch.device("meta"):
        model = make_model(section)
    pack_weights(model, [one for one in section.tensors() if qlora().packs(one)], how, DTYPE)
    materialize(model, torch.device("cpu"), 1)
    weights = {one.name: one.weight(DTYPE) for one in packed_in(model)}
    assert len(weights) >= 7 * section.n_layers
    kept: list[Tensor] = []
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        made = model(tokens)
    made.square().sum().backward()
    floats = {tuple(x.shape) for x in kept if x.is_floating_point()}
    assert not {tuple(one.shape) for one in weights.values()} & floats
    plain = make_model(section)
    others = {k: v for k, v in model.state_dict().items() if k in plain.state_dict()}
    plain.load_state_dict({**others, **weights})
    plain.train()
    expected = plain(tokens)
    expected.square().sum().backward()
    assert torch.allclose(made, expected, rtol=1e-5, atol=1e-6)
    theirs = dict(plain.named_parameters())
    for name, one in model.named_parameters():
        if one.requires_grad:
            assert torch.allclose(one.grad, theirs[name].grad, rtol=1e-4, atol=1e-5), name


def test_first_values_are_those_of_plain_weights_rounded():
    section: Any = forge.compose({"model": "tiny", "model.vocab_size": 256}).model
    plain = make_model(section)
    init_weights(plain, 7)
    with torch.device("meta"):
        model = make_model(section)
    pack_weights(model, [one for one in section.tensors() if qlora().packs(one)], "nf4", DTYPE)
    materialize(model, torch.device("cpu"), 7)
    own = dict(plain.named_parameters())
    for one in packed_in(model):
        rounded = unpack(pack_weight(own[one.name].detach(), "nf4"), "nf4", DTYPE)
        assert torch.equal(one.weight(DTYPE), rounded)


@pytest.mark.nightly
@pytest.mark.parametrize("how", FORMATS)
def test_values_are_those_of_bitsandbytes(how: str):
    """Row by row, since it takes the mean of all scales, which would depend on the layout."""
    from bitsandbytes import functional as theirs

    rows = weights()[2:]
    ours = pack_weight(rows, how)
    if how == "int8":
        codes, scales, _ = theirs.int8_vectorwise_quant(rows.clone())
        assert torch.equal(codes, ours["codes"])
        assert torch.equal(scales, ours["row_scales"].flatten())
        return
    assert torch.equal(torch.tensor(NF4), theirs.get_4bit_type("nf4", device="cpu"))
    made = unpack(ours, how, torch.float32)
    for number, row in enumerate(rows):
        quantized, state = theirs.quantize_4bit(
            row[None], blocksize=64, compress_statistics=how == "nf4_double", quant_type="nf4"
        )
        assert torch.equal(quantized.flatten(), ours["codes"][number])
        double = how == "nf4_double"
        found = theirs.dequantize_4bit(quantized, state)
        assert torch.allclose(found, made[number], atol=2e-3 if double else 1e-6)
        if double:  # our mean is rounded once, so that a scale in the middle may be the other one
            apart = (state.absmax.int() - ours["scale_codes"][number].int()).abs()
            assert apart.max() <= 1
            assert apart.sum() <= 1


@pytest.mark.parametrize("how", FORMATS)
def test_tables_are_made_once_for_a_device(how):
    """A second unpacking makes no tensor of Python's numbers and copies none: on a GPU it would
    wait.
    """
    parts = pack_weight(weights(), how)
    unpack(parts, how, torch.bfloat16)
    names: list[str] = []

    class Named(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Named():
        unpack(parts, how, torch.float32)
    assert "copy_" in names  # into the rows of the weight, on the same device
    assert not {"lift_fresh", "_local_scalar_dense", "scalar_tensor", "clone"} & set(names)
