"""Further optimizers of the `optimizer` group."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.optimizer import CAUTIOUS, FP32, Adam, Adaptive, Optimizer


@section
class AdamPax(Adam):
    """The Adam of Pax and MaxText, with decay rates that are corrected for the first updates."""

    schema_name = "adam_pax"
    _target_: str = "forge.optim.adam.AdamPax"


@section
class SGD(Optimizer):
    """SGD with momentum, its weight decay decoupled (SGDW, arXiv:1711.05101)."""

    schema_name = "sgd"
    _target_: str = "forge.optim.sgd.SGD"
    momentum: float = opt(0.0, "how much of the sum of gradients is kept; 0 = no sum", ge=0, lt=1)
    nesterov: bool = opt(False, "step to where the momentum would lead next; needs momentum")
    cautious: bool = opt(False, CAUTIOUS)

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        return FP32 * math.prod(shape) if self.momentum else 0


@section
class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW (arXiv:2405.15682): a mean of its weights is read, and no rate falls."""

    schema_name = "schedule_free_adamw"
    state_per_weight = 2
    one_by_one = False
    _target_: str = "forge.optim.schedule_free.ScheduleFreeAdamW"
    betas: tuple[float, float] = opt(
        (0.9, 0.95),
        "share of the mean in the weights that are trained, and decay rate of the second moment",
        ge=0,
        lt=1,
    )
    eps: float = opt(1e-8, "added to the root of the second moment", gt=0)
    schedule_free_warmup_steps: int = opt(
        0, "updates over which its own rate grows, beside any warm-up of the scheduler", ge=0
    )


@section
class AdamWLowBit(Adaptive):
    """AdamW with moments of 8 or 4 bits (torchao; arXiv:2110.02861, arXiv:2309.01507)."""

    schema_name = "adamw_low_bit"
    _target_: str = "forge.optim.low_bit.LowBitAdamW"
    state_format: str = opt(
        "8bit", "what the moments of matrices are kept in", choices=("8bit", "4bit", "fp8")
    )

    def state_bytes(self, shape: tuple[int, ...]) -> int:
        size, block = math.prod(shape), low_bit_block(shape, self.state_format)
        if not block:
            return 2 * FP32 * size
        return 2 * (size // CODES_IN_BYTE[self.state_format] + FP32 * size // block)


CODES_IN_BYTE = {"8bit": 1, "4bit": 2, "fp8": 1}
BLOCKS = {"8bit": 256, "4bit": 128, "fp8": 256}
"""Most values of a row that share a scale, as in torchao."""
FEWEST, SHORTEST = 4096, 32
"""Values of a tensor whose moments are quantized, and of one that share a scale."""


def low_bit_block(shape: tuple[int, ...], state_format: str) -> int:
    """Values of a row of a tensor that share a scale; 0 = its moments are in fp32."""
    if len(shape) < 2 or math.prod(shape) < FEWEST:
        return 0
    block = math.gcd(shape[-1], BLOCKS[state_format])
    return block if block >= SHORTEST else 0
