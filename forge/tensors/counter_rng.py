"""Random numbers that are a hash of where they are used, on any layout the same."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def keys_of(name: str) -> Tensor:
    """Two keys, int32 [2], on the CPU."""
    drawn = bytearray(blake2b(name.encode(), digest_size=8).digest())
    return torch.frombuffer(drawn, dtype=torch.int32)


def hashed(at: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """32 bits of each place under two keys, all int32 whose products wrap: Wellons' lowbias32, with
    a key at its start and one in the middle, so that no two keys give shifted equal sequences.
    """
    x = (at * -0x61C88647) ^ first
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) + second
    x = x * (0x846CA68B - (1 << 32))
    return x ^ ((x >> 16) & 0xFFFF)
