"""AdamW with moments of 8 or 4 bits."""

from __future__ import annotations

import math

from forge.config.field import opt, section
from forge.config.optimizers.base import FP32, Adaptive


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
"""Most values of a row with one scale, as in torchao."""
FEWEST, SHORTEST = 4096, 32
"""Least values of a tensor with quantized moments, and of a block with one scale."""


def low_bit_block(shape: tuple[int, ...], state_format: str) -> int:
    """Values of a row of a tensor with one scale; 0 = moments in fp32."""
    if len(shape) < 2 or math.prod(shape) < FEWEST:
        return 0
    block = math.gcd(shape[-1], BLOCKS[state_format])
    return block if block >= SHORTEST else 0
