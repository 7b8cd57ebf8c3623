"""The kernels of AdamW with few bits and of NF4 by Triton's interpreter on the CPU, against the
plain update and the plain unpacking.

Started with the environment of `make cuda`, which has Triton; prints JSON: for each comparison the
shares of equal values and the largest distances.
"""

import json
import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor

from forge.adapters.formats import pack_weight, unpack, unpack_by_kernel
from forge.config.optimizers.low_bit import AdamWLowBit
from forge.optim.adam_update import Options, _update
from forge.optim.low_bit import LowBitAdamW, quantizer
from forge.optim.low_bit_kernel import code_bounds, update_by_kernel
from forge.optim.rounding import _index_summands
from forge.tensors.counter_rng import rng_keys

BETAS, EPS = (0.8, 0.95), 1e-3


def gradient(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Values over many orders of magnitude."""
    return (torch.randn(shape) * torch.randn(shape).mul(3).exp()).to(dtype)


def updated(by_kernel: bool, kind: str, dtype: torch.dtype, shape: tuple[int, ...]) -> list[Tensor]:
    """Weights and state after two updates, and a third that is skipped."""
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(shape).to(dtype))
    section = AdamWLowBit(lr=0.1, betas=BETAS, eps=EPS, weight_decay=0.1, state_format=kind)
    optimizer = LowBitAdamW([parameter], section)
    parameter.grad = gradient(shape, dtype)
    optimizer.step()
    in_16_bits = dtype == torch.bfloat16
    rounded = None if in_16_bits else torch.zeros(shape, dtype=torch.bfloat16)
    for step, bad in ((2, 0.0), (3, 0.0), (4, 1.0)):
        parameter.grad = gradient(shape, dtype)
        if bad:
            parameter.grad.flatten()[7] = torch.nan
        first, second, quantize = optimizer.moments(parameter)
        key_1, key_2 = rng_keys(f"{step}").unbind()
        noise = (key_1, key_2, _index_summands(parameter)) if in_16_bits else None
        options = Options(BETAS, EPS, cautious=step == 3, quantize=quantize)
        state = (rounded, parameter.grad, first, second, torch.tensor(float(step)))
        others = (*state, torch.tensor(0.5), torch.tensor(bad), noise)
        with torch.no_grad():
            if by_kernel:
                update_by_kernel(options, parameter.detach(), *others, rate=0.1, decay=0.1)
            else:
                _update(options, parameter, *others, torch.tensor(0.1), torch.tensor(0.1))
    # The interpreter cuts to bf16 where a GPU rounds: `rounded` is near the reference, not equal.
    return [
        parameter.detach(),
        *optimizer.state[parameter].values(),
        *([] if rounded is None else [rounded]),
    ]


def compared() -> dict[str, list[tuple[float, float]]]:
    """For each case and tensor: the share of equal values, the largest relative distance."""
    results = {}
    for kind in ("8bit", "4bit"):
        for dtype in (torch.float32, torch.bfloat16):
            for shape in ((3, 8, 512), (130, 96)):
                pairs = zip(
                    *(updated(act, kind, dtype, shape) for act in (False, True)), strict=True
                )
                results[f"{kind} {dtype} {shape}"] = [
                    (
                        (a == b).double().mean().item(),
                        ((a - b).double().norm() / b.double().norm()).item(),
                    )
                    for a, b in ((a.float(), b.float()) for a, b in pairs)
                ]
    return results


def other_codes(kind: str) -> int:
    """How many of many values get another code than by torchao, values at all bounds among them."""
    bits = {"8bit": 256, "4bit": 128}[kind]
    section = AdamWLowBit(lr=0.0, betas=(0.0, 0.0), eps=1.0, weight_decay=0.0, state_format=kind)
    parameter = torch.nn.Parameter(torch.zeros(256, bits))
    optimizer = LowBitAdamW([parameter], section)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments: Any = optimizer.moments(parameter)
    first, second, quantize = moments
    bounds = torch.cat([code_bounds(moment.qmap)[1:-1] for moment in (first, second)])
    bounds = torch.cat([bounds, bounds.abs().sqrt()])
    near = [bounds.nextafter(torch.tensor(end)) for end in (-2.0, 2.0)]
    torch.manual_seed(0)
    spread = 10 ** (torch.rand(parameter.numel()) * -9) * torch.randn(parameter.numel()).sign()
    values = torch.cat([bounds, *near, torch.zeros(3), spread])[: parameter.numel()].clamp(-1, 1)
    values = values.view_as(parameter).clone()
    values[:, 0] = 1.0  # the scale of each block
    options = Options((0.0, 0.0), 1.0, quantize=quantize)
    count = torch.tensor(1.0)
    state = (values, first, second, count, None, None, None)
    update_by_kernel(options, parameter.detach(), None, *state, rate=0.0, decay=0.0)
    wrong = 0
    for moment, new in ((first, values), (second, values * values)):
        codes, scale = quantizer(kind)(moment, new)
        wrong += int((codes != moment.codes).sum()) + int((scale != moment.scale).sum())
    return wrong


def unpacked() -> dict[str, bool]:
    """Whether weights unpacked by the kernel have the bits of those unpacked by operators."""
    torch.manual_seed(2)
    equal = {}
    for how in ("nf4", "nf4_double"):
        for shape in ((130, 192), (3, 40, 256)):
            weight = torch.randn(shape) * torch.randn(*shape[:-1], 1).exp()
            parts = pack_weight(weight, how)
            made = torch.full(shape, torch.nan)
            unpack_by_kernel({name: part.flatten(0, -2) for name, part in parts.items()}, made)
            equal[f"{how} {shape}"] = torch.equal(made, unpack(parts, how, torch.float32))
    return equal


if __name__ == "__main__":
    torch.set_num_threads(1)
    codes = {kind: other_codes(kind) for kind in ("8bit", "4bit")}
    print(json.dumps({"compared": compared(), "other_codes": codes, "unpacked": unpacked()}))
