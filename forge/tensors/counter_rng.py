"""Random numbers by a hash of the place of use, equal on any layout."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def rng_keys(name: str) -> Tensor:
    """Two keys from a hash of a name, int32 [2], on the CPU."""
    drawn = bytearray(blake2b(name.encode(), digest_size=8).digest())
    return torch.frombuffer(drawn, dtype=torch.int32)


def hashed(at: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Hash indices to 32 bits under two keys, in int32 with wrapping products: Wellons' lowbias32,
    with a key at the start and a key in the middle, so that no two keys give shifted equal
    sequences.
    """
    x = (at * -0x61C88647) ^ first
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) + second
    x = x * (0x846CA68B - (1 << 32))
    return x ^ ((x >> 16) & 0xFFFF)
