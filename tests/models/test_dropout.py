"""Dropout against a hash computed in Python's integers, and what its random numbers look like."""

from __future__ import annotations

import itertools
from hashlib import blake2b

import numpy as np
import pytest
import torch
from torch import Tensor

from forge.data.batches.noise import noise_of
from forge.models.dropout import Dropout, Jitter

WORD = (1 << 32) - 1


def keys(name: str) -> tuple[int, int]:
    drawn = blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(drawn[:4], "little"), int.from_bytes(drawn[4:], "little")


def lowbias32(at: int, first: int, second: int) -> int:
    x = at * 0x9E3779B9 & WORD ^ first
    x = (x ^ x >> 16) * 0x7FEB352D & WORD
    x = (x ^ x >> 15) + second & WORD
    x = x * 0x846CA68B & WORD
    return x ^ x >> 16


def uniform(row: int, position: int, feature: int, name: str) -> float:
    """In [-0.5, 0.5)."""
    place = lowbias32(position, *keys(f"7/noise/{row}"))
    first, second = keys(name)
    drawn = lowbias32(feature, place ^ first, place * 0x2C1B3C6D + second & WORD)
    return ((drawn + (1 << 31)) % (1 << 32) - (1 << 31)) / (1 << 32)


def drawn(layer: Dropout | Jitter, rows: range, seq: int) -> None:
    layer.noise.bits = noise_of(7, rows, seq)


def test_masks_and_gradients_by_hand() -> None:
    layer, rows = Dropout(0.3, "blocks.2.attention"), range(5, 8)
    drawn(layer, rows, 6)
    x = torch.ones(3, 6, 4, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    wanted = [
        [[uniform(row, t, f, "blocks.2.attention") >= -0.2 for f in range(4)] for t in range(6)]
        for row in rows
    ]
    assert 40 < sum(map(sum, itertools.chain.from_iterable(wanted))) < 65
    assert torch.equal(y, torch.tensor(wanted, dtype=torch.float64) * (1 / 0.7))
    (y * 3).sum().backward()
    assert torch.equal(x.grad, 3 * y)  # type: ignore[arg-type]
    # What a rank has of features and rows has the same masks.
    layer.first = 2
    drawn(layer, range(6, 7), 6)
    assert torch.equal(layer(x[1:2, :, 2:]), y[1:2, :, 2:])
    assert layer.eval()(x) is x


def test_jitter_by_hand() -> None:
    layer, width = Jitter("jitter"), torch.tensor([[3.0, 0.0]], dtype=torch.float64)
    drawn(layer, range(1, 2), 2)
    x = torch.ones(1, 2, 4, dtype=torch.float64)
    wanted = [1 + 2 * uniform(1, 0, f, "jitter") * 3 / 2 for f in range(4)]
    expected = torch.tensor([[wanted, [1.0] * 4]], dtype=torch.float64)
    torch.testing.assert_close(layer(x, width), expected, rtol=1e-7, atol=0)
    assert layer.eval()(x, width) is x


def test_random_numbers_are_uniform_and_independent() -> None:
    """Of neighbours along each dimension, of layers, and of seeds."""

    def kept(name: str, seed: int = 0) -> Tensor:
        layer = Dropout(0.5, name)
        layer.noise.bits = noise_of(seed, range(40), 100)
        return layer(torch.ones(40, 100, 50)) - 1  # -1 or 1

    one = kept("a")
    pairs = {
        "mean": one,
        "layers": one * kept("b"),
        "seeds": one * kept("a", 1),
        "rows": one[1:] * one[:-1],
        "positions": one[:, 1:] * one[:, :-1],
        "features": one[..., 1:] * one[..., :-1],
        "diagonal": one[:, 1:, 1:] * one[:, :-1, :-1],
    }
    for name, values in pairs.items():
        assert abs(values.mean()) < 4 * values.numel() ** -0.5, name
    layer = Dropout(0.1, "a")
    drawn(layer, range(40), 100)
    share = (layer(torch.ones(40, 100, 50)) == 0).double().mean()
    assert abs(share - 0.1) < 4 * (0.09 / 200_000) ** 0.5
    assert len(np.unique(noise_of(0, range(40), 100))) > 3990


def test_a_model_in_training_needs_noise() -> None:
    with pytest.raises(ValueError, match="attention draws random numbers") as caught:
        Dropout(0.1, "blocks.0.attention")(torch.ones(1, 2, 3))
    assert "an objective reads a batch by read(model, batch)" in str(caught.value)
