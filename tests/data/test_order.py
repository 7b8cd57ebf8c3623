"""The keyed permutation: a bijection, the same everywhere, different for every key."""

from __future__ import annotations

from hashlib import blake2b
from math import isqrt

import numpy as np
import pytest

from forge.data.batches.order import BLOCK, SampleOrder, permute

U64 = (1 << 64) - 1


def scalar_permute(index: int, n: int, seed: int, epoch: int) -> int:
    """The same network in plain integers."""
    half = isqrt(n - 1) + 1
    digest = blake2b(f"{seed}/{epoch}".encode(), digest_size=64, person=b"forge.order").digest()
    keys = [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 64, 8)]
    while True:
        left, right = divmod(index, half)
        for key in keys:
            x = (right + key) & U64
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
            left, right = right, (left + (x ^ (x >> 31)) % half) % half
        index = left * half + right
        if index < n:
            return index


@pytest.mark.parametrize(
    "sizes",
    [
        range(1, 301),
        [997, 7919, 104_729],
        [1 << k for k in range(9, 18)],
        [(1 << 16) - 1, (1 << 16) + 1, 1_000_003],
    ],
)
def test_every_index_is_hit_once(sizes) -> None:
    for n in sizes:
        assert np.array_equal(np.sort(permute(np.arange(n), n, (3, 1))), np.arange(n)), n


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, (1 << 32) + 7, (1 << 62) + 1])
def test_vectorised_equals_plain_integers(n) -> None:
    indices = np.unique(np.linspace(0, n - 1, 50).astype(np.int64))
    indices = indices[indices < n]
    assert permute(indices, n, (5, 2)).tolist() == [
        scalar_permute(int(i), n, 5, 2) for i in indices
    ]


def test_order_never_changes() -> None:
    """A run that is resumed with a later forge must see the same samples."""
    assert permute(np.arange(10), 10, (42, 0)).tolist() == [7, 0, 8, 4, 9, 5, 2, 3, 6, 1]


def test_seed_and_epoch_change_the_order() -> None:
    orders = [
        permute(np.arange(1000), 1000, (seed, epoch)) for seed in range(4) for epoch in range(4)
    ]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert (a == b).mean() < 0.02


@pytest.mark.parametrize("n", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3000])
def test_sample_order_is_the_permutation_of_each_epoch(n) -> None:
    order = SampleOrder(n, seed=9)
    samples = [*range(min(3 * n, 2 * BLOCK)), 10 * n + n // 2, 0]
    assert [order.window(i) for i in samples] == [
        scalar_permute(i % n, n, 9, i // n) for i in samples
    ]


def test_without_a_seed_windows_are_in_their_own_order():
    order = SampleOrder(5, seed=None)
    assert [order.window(n) for n in range(12)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
