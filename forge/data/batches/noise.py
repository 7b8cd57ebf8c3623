"""Random bits of each place of a run, the source of dropout."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor


def noise_of(seed: int | str, rows: Iterable[int], seq_len: int) -> Tensor:
    """int32 [rows, seq_len]: a function of the seed, the row's number in the run and the position
    alone.
    """
    positions = np.arange(seq_len, dtype=np.uint32) * np.uint32(0x9E3779B9)
    noise_rows = [_row(positions, f"{seed}/noise/{row}") for row in rows]
    return torch.from_numpy(np.stack(noise_rows).view(np.int32))


def _row(at: np.ndarray, name: str) -> np.ndarray:
    """Wellons' lowbias32 of positions, with a key at the start and one in the middle."""
    first, second = np.frombuffer(blake2b(name.encode(), digest_size=8).digest(), dtype=np.uint32)
    x = at ^ first
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) + second
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
