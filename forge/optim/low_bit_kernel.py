"""AdamW's update with moments of 8 or 4 bits in a single kernel a parameter, on CUDA.

Compiled by Inductor, the scales of blocks split the update into four kernels, and both new moments
go through memory in fp32: 36 bytes a weight in bf16. Here they stay in registers: about 10 bytes.
"""

from __future__ import annotations

import importlib
import math
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from forge.optim.rounding import Noise
from forge.tensors.triton_kernels import triton_works

VALUES_AT_ONCE = 1024
"""Values of a program of the kernel: 8 of each thread of four warps."""


def kernel_takes(options: Any, weight: Tensor, gradient: Tensor, moment: Any) -> bool:
    """Whether the kernel computes this update; if not, the compiled update does.

    options: `forge.optim.adam_update.Options`.
    """
    if options.quantize is None or options.corrected or options.eps_root:
        return False
    if weight.dtype not in (torch.float32, torch.bfloat16) or not triton_works():
        return False
    # Moments in fp8 are left out: on the CPU Triton rounds to fp8 in a way of its own, so that
    # nothing there could prove them.
    if moment.codes.dtype != torch.uint8:
        return False
    return weight.is_contiguous() and gradient.is_contiguous()


def update_by_kernel(
    options: Any, weight: Tensor, rounded: Tensor | None, gradient: Tensor, first: Any, second: Any,
    count: Tensor, factor: Tensor | None, found_inf: Tensor | None, noise: Noise | None,
    *, rate: float, decay: float,
) -> None:  # fmt: skip
    """Update in place, as `forge.optim.adam_update.update_weight`."""
    kernels: Any = importlib.import_module("forge.optim.low_bit_triton")
    blocks = first.scale.numel()
    block = weight.numel() // blocks
    at_once = max(1, VALUES_AT_ONCE // block)
    of_rows, of_columns, keys = _noise_arguments(noise)
    moments = (
        (moment.codes, moment.scale, moment.qmap, _bounds_of(moment.qmap))
        for moment in (first, second)
    )
    rests = (1 - beta for beta in options.betas)
    logs = (math.log(beta) if beta else -math.inf for beta in options.betas)
    kernels.adamw_of_blocks[(math.ceil(blocks / at_once),)](
        *(weight, rounded, gradient, *chain.from_iterable(moments), count, factor, found_inf),
        *(of_rows, of_columns, *keys, blocks, rate, decay, *rests, *logs, options.eps),
        weight.shape[-1] // block,
        BITS=8 * first.codes.numel() // weight.numel(),
        CAUTIOUS=options.cautious,
        BLOCK=block,
        BLOCKS=at_once,
    )


def _noise_arguments(noise: Noise | None) -> tuple[Tensor | None, Tensor | None, tuple[int, int]]:
    """Summands of rows and of columns, and both keys."""
    if noise is None:
        return None, None, (0, 0)
    first, second, (columns, *others) = noise
    rows = sum(others[1:], others[0]).contiguous() if others else None
    return rows, columns, (int(first), int(second))  # keys are on the CPU: nothing waits


@cache
def _bounds_of(values: Tensor) -> Tensor:
    """The least value of each code, and infinity, on the device of `values`."""
    return code_bounds(values.cpu()).to(values.device)


def code_bounds(values: Tensor) -> Tensor:
    """The least fp32 value that torchao rounds to each code, and infinity.

    values: fp32, ascending, those of the codes. torchao rounds x between two of them up where
    x - low >= (high - low) / 2 in fp32.
    """
    low, high = values[:-1], values[1:]
    half, bounds = (high - low) * 0.5, (low + high) * 0.5
    # The middle is at most some units in the last place away.
    for _ in range(8):
        below = bounds.nextafter(torch.tensor(-math.inf))
        bounds = torch.where(below - low >= half, below, bounds)
        bounds = torch.where(bounds - low >= half, bounds, bounds.nextafter(torch.tensor(math.inf)))
    ends = values.new_tensor([-math.inf, math.inf])
    return torch.cat((ends[:1], bounds, ends[1:]))
