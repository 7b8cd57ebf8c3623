"""Stochastic rounding against numpy, in distribution, and wherever it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from updates import set_gradients

from forge.config.optimizers.adam import Adam as AdamSection
from forge.config.optimizers.lion import Lion as LionSection
from forge.optim.adam import Adam
from forge.optim.adam_update import Options, _update
from forge.optim.lion import Lion
from forge.optim.low_bit import quantizer
from forge.optim.rounding import Rounding, stochastic
from forge.tensors.counter_rng import hashed
from forge.tensors.local import local, owned, select

SHAPE = (48, 64)


def noise_of(parameter: torch.Tensor, number: int = 0, name: str = "w", seed: int = 1):
    found = Rounding(names={parameter: name}, stochastic=True, seed=seed)
    noise = found.noise(parameter, number)
    assert noise is not None
    return noise


def test_the_hash_is_that_of_numpy():
    """In the arithmetic of uint32, where torch has int32 whose products wrap."""
    at = np.arange(0, 1 << 32, 104729, dtype=np.uint32)
    first, second = np.uint32(0x89ABCDEF), np.uint32(0x12345678)
    with np.errstate(over="ignore"):
        x = (at * np.uint32(0x9E3779B9)) ^ first
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) + second
        x = x * np.uint32(0x846CA68B)
        x = x ^ (x >> np.uint32(16))
    keys = [torch.tensor(key.astype(np.int32)) for key in (first, second)]
    found = hashed(torch.tensor(at.view(np.int32)), *keys)
    assert np.array_equal(found.numpy().view(np.uint32), x)


def test_a_value_goes_up_as_often_as_it_is_far_from_below():
    """Of many values that lie at a share of the way between two neighbours, for each share; the
    mean error is 0, and steps, neighbours and names draw for themselves.
    """
    n = 1 << 16
    parameter = torch.nn.Parameter(torch.zeros(n, dtype=torch.bfloat16))
    below, above = 1.0, 1.0 + 2**-7
    drawn = []
    for number, share in enumerate((0.0, 0.1, 0.25, 0.5, 0.9)):
        for sign in (1.0, -1.0):
            values = torch.full((n,), sign * (below + share * (above - below)))
            found = stochastic(values, noise_of(parameter, number)).abs()
            assert found.bfloat16().float().equal(found)
            assert set(found.tolist()) <= {below, above}
            up = (found == above).double().mean().item()
            assert abs(up - share) < 4 * (share * (1 - share) / n) ** 0.5 + 2**-16
        drawn.append(found == above)
    noise = noise_of(parameter, 3), noise_of(parameter, 4), noise_of(parameter, 3, "v")
    half = torch.full((n,), below + 2**-8)
    ups = torch.stack([stochastic(half, one).gt(below).double() for one in noise])
    shifted = torch.cat([ups, ups[:, torch.arange(n) - 1]])
    correlation = torch.corrcoef(shifted) - torch.eye(len(shifted))
    assert correlation.abs().max() < 5 / n**0.5
    whole = torch.randn(n) * torch.logspace(-30, 30, n)
    error = (stochastic(whole, noise[0]) - whole) / whole
    assert error.abs().max() < 2**-7
    assert error.mean().abs() < 5 * error.std() / n**0.5
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0]).expand(1, 5)
    same = stochastic(odd, noise_of(torch.nn.Parameter(odd.bfloat16())))
    assert torch.equal(same.nan_to_num(7.0), odd.nan_to_num(7.0))


def updated(optimizer: str, parameter: torch.nn.Parameter, gradient, *, steps=3) -> torch.Tensor:
    groups = [{"params": [parameter], "weight_decay": 0.1}]
    options = {"lr": 1e-2, "betas": (0.9, 0.99)}
    made = Lion(groups, LionSection(**options))
    if optimizer == "adam":
        made = Adam(groups, AdamSection(**options, mu_dtype="bf16", nu_dtype="bf16"))
    made.rounding = Rounding(names={parameter: "w"}, stochastic=True, seed=3)
    for number in range(steps):
        parameter.grad = gradient(number)
        groups[0]["number"] = number
        made.param_groups[0]["number"] = number
        made.step()
    return parameter.detach()


@pytest.mark.parametrize("optimizer", ["adam", "lion"])
def test_shards_get_the_bits_that_one_device_gets(optimizer):
    """Cut by rows, by columns, by both, unevenly, and by rows twice as FSDP over tp cuts."""
    torch.manual_seed(0)
    start = torch.randn(47, 6).bfloat16()
    gradients = [torch.randn(47, 6).bfloat16() for _ in range(3)]
    whole = updated(optimizer, torch.nn.Parameter(start.clone()), gradients.__getitem__)
    nearest = (start - whole).abs()
    assert nearest.max() > 0

    def work(_: int) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        for layout in ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(0)]):
            parameter = torch.nn.Parameter(distribute_tensor(start, mesh, layout))
            cut = [distribute_tensor(one, mesh, layout) for one in gradients]
            found = updated(optimizer, parameter, cut.__getitem__)
            assert torch.equal(local(found), select(whole, owned(parameter)))

    on_ranks(4, work)


@pytest.mark.nightly
@pytest.mark.parametrize("quantized", [False, True])
def test_the_compiled_update_has_the_bits_of_the_other(quantized):
    """By inductor, which makes one kernel of it."""
    compiled = torch.compile(_update, fullgraph=True, dynamic=False)
    found = []
    for act in (_update, compiled):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(SHAPE).bfloat16())
        first, second = torch.randn(SHAPE).bfloat16(), torch.rand(SHAPE).bfloat16()
        if quantized:
            from torchao.optim.subclass_8bit import OptimState8bit

            kept = [OptimState8bit.zeros(SHAPE, signed=signed) for signed in (True, False)]
            for to, of in zip(kept, (first, second), strict=True):
                to.copy_(of.float())
            first, second = kept
        for number in range(2):
            quantize = quantizer("8bit") if quantized else None
            options = Options((0.9, 0.95), 1e-8, quantize=quantize)
            with torch.no_grad():
                act(
                    options,
                    weight,
                    None,
                    torch.randn(SHAPE).bfloat16(),
                    first,
                    second,
                    torch.tensor(3.0),
                    torch.tensor(0.5),
                    torch.tensor(0.0),
                    noise_of(weight, number),
                    torch.tensor(1e-2),
                    torch.tensor(0.1),
                )
        found.append(
            [weight.detach(), *(x.dequantize() if quantized else x for x in (first, second))]
        )
    for ours, theirs in zip(*found, strict=True):
        assert (ours == theirs).double().mean() > 0.999, "roots may differ in their last bit"


def test_without_noise_small_updates_are_lost_and_with_it_they_are_not():
    """Steps of a thousandth of the distance between neighbours, for 2000 updates."""
    ends = {}
    for stochastically in (False, True):
        parameter = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
        made = Lion([parameter], LionSection(lr=2**-7 / 1000, weight_decay=0.0))
        made.rounding = Rounding(names={parameter: "w"}, stochastic=stochastically, seed=0)
        for number in range(2000):
            set_gradients([parameter], 0)
            parameter.grad.fill_(-1.0)
            made.param_groups[0]["number"] = number
            made.step()
        ends[stochastically] = parameter.detach().double().mean().item()
    assert ends[False] == 1
    assert ends[True] == pytest.approx(1 + 2 * 2**-7, abs=5 * 2**-7 * (2 / 4096) ** 0.5)
