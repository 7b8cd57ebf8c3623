"""The order of samples: a keyed permutation without memory.

Sample i of a run is window `permute(i % n, n, (seed, i // n))` of the n windows of the split: every
epoch visits each window once, in an order of its own.
"""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt

import numpy as np

ROUNDS = 8
BLOCK = 1024


def permute(indices: np.ndarray, n: int, key: tuple[int | str, int]) -> np.ndarray:
    """Images of `indices` under the permutation of range(n) for `key` = (seed, epoch): int64, any
    shape.

    A balanced Feistel network over pairs of numbers below m = ceil(sqrt(n)), (l, r) -> (r, l + F(r)
    mod m), walked again on leaving range(n) (Black and Rogaway, Ciphers with Arbitrary Finite
    Domains, CT-RSA 2002). F is the finaliser of splitmix64 on r plus a round key from BLAKE2b.
    """
    assert n > 0
    half = np.uint64(_ceil_sqrt(n))
    keys = _round_keys(key)
    result = _network(np.asarray(indices).astype(np.uint64), half, keys)
    while (outside := result >= np.uint64(n)).any():
        result[outside] = _network(result[outside], half, keys)
    return result.astype(np.int64)


def _ceil_sqrt(n: int) -> int:
    return isqrt(n - 1) + 1


def _round_keys(key: tuple[int | str, int]) -> np.ndarray:
    seed, epoch = key
    text = f"{seed}/{epoch}".encode()
    digest = blake2b(text, digest_size=8 * ROUNDS, person=b"forge.order").digest()
    return np.frombuffer(digest, dtype="<u8")


def _network(indices: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = indices // half, indices % half
    for key in keys:
        left, right = right, (left + _mix(right + key) % half) % half
    return left * half + right


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class SampleOrder:
    """Windows by sample number, for forward reading: permuted 1,024 at a time. seed: None = in
    order.
    """

    def __init__(self, n_windows: int, *, seed: int | str | None) -> None:
        self.n_windows = n_windows
        self.seed = seed
        self._block: tuple[int, int] | None = None
        self._windows: list[int] = []

    def window(self, sample: int) -> int:
        epoch, index = divmod(sample, self.n_windows)
        if self.seed is None:
            return index
        block, offset = divmod(index, BLOCK)
        if self._block != (epoch, block):
            indices = np.arange(block * BLOCK, min((block + 1) * BLOCK, self.n_windows))
            self._windows = permute(indices, self.n_windows, (self.seed, epoch)).tolist()
            self._block = (epoch, block)
        return self._windows[offset]
