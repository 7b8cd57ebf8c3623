"""Products with rounded factors in numpy, from the definitions of the formats alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray


def numbers(exponent_bits: int, mantissa_bits: int, most: float) -> Array:
    """All numbers from 0 to `most` of a floating-point format, in order: their index is the code,
    so that an even one has an even mantissa.
    """
    bias, steps = 2 ** (exponent_bits - 1) - 1, 2**mantissa_bits
    small = [m / steps * 2.0 ** (1 - bias) for m in range(steps)]
    normal = [
        (1 + m / steps) * 2.0 ** (e - bias)
        for e in range(1, 2**exponent_bits)
        for m in range(steps)
    ]
    return np.array([n for n in small + normal if n <= most])


E4M3, E5M2, E2M1 = numbers(4, 3, 448.0), numbers(5, 2, 57344.0), numbers(2, 1, 6.0)
INT8 = np.arange(128.0)


def nearest(values: Array, grid: Array) -> Array:
    """The nearest number of a format, of two the even one; the largest for what is larger."""
    size = np.minimum(np.abs(values), grid[-1])
    above = np.searchsorted(grid, size).clip(1, len(grid) - 1)
    below = above - 1
    middle = (grid[above] + grid[below]) / 2
    even = np.where(below % 2 == 0, below, above)
    found = np.where(size < middle, below, np.where(size > middle, above, even))
    return np.sign(values) * grid[found]


def scaled(values: Array, grid: Array, axis: int | None, *, power: bool) -> Array:
    """Rounded with the scale that makes the largest of an axis, or of all, the largest number."""
    largest = np.abs(values).max(axis=axis, keepdims=True).astype(np.float64)
    scale = (grid[-1] / np.maximum(largest, 1e-12)).astype(np.float32)
    scale = 2.0 ** np.floor(np.log2(scale)) if power else scale.astype(np.float64)
    return nearest((values.astype(np.float32) * scale.astype(np.float32)), grid) / scale


def int8(values: Array, axis: int) -> Array:
    scale = np.abs(values).max(axis=axis, keepdims=True) / 127
    return nearest(values / np.maximum(scale, 1e-12), INT8) * scale


def mxfp8(values: Array, axis: int) -> Array:
    """OCP Microscaling Formats 1.0, with the exponent rounded up, as Blackwell does."""
    rows = np.moveaxis(values, axis, -1)
    made = np.empty_like(rows, dtype=np.float64)
    for start in range(0, rows.shape[-1], 32):
        part = rows[..., start : start + 32]
        largest = np.abs(part).max(-1, keepdims=True)
        scale = 2.0 ** np.ceil(np.log2(largest / 448.0))
        made[..., start : start + 32] = nearest(part / scale, E4M3) * scale
    return np.moveaxis(made, -1, axis)


def tensorwise(grid: Array) -> Callable[[Array, int], Array]:
    return lambda values, axis: scaled(values, grid, None, power=False)


def rowwise(values: Array, axis: int) -> Array:
    return scaled(values, E4M3, axis, power=True)


def tensorwise_by_power(values: Array, axis: int) -> Array:
    return scaled(values, E4M3, None, power=True)


def as_it_is(values: Array, axis: int) -> Array:
    return values


SIX: dict[str, tuple[Callable[[Array, int], Array], ...]] = {
    "fp8 tensorwise": (
        *(tensorwise(E4M3), tensorwise(E4M3)),
        *(tensorwise(E5M2), tensorwise(E4M3)),
        *(tensorwise(E5M2), tensorwise(E4M3)),
    ),
    "fp8 rowwise": (rowwise,) * 6,
    "fp8 rowwise_with_gw_hp": (*(rowwise,) * 3, tensorwise_by_power, as_it_is, as_it_is),
    "mxfp8": (mxfp8,) * 6,
    "int8": (int8,) * 6,
}
"""How input and weight of the output, gradient and weight of the gradient of the input, gradient
and input of the gradient of the weight are rounded, along the axis that is added up.
"""


def products(kind: str, x: Array, w: Array, g: Array) -> tuple[Array, Array, Array]:
    """x: [n, in], w: [out, in], g: [n, out] -> output, gradient of x, gradient of w, in fp64."""
    a, b, c, d, e, f = SIX[kind]
    return (
        a(x, 1).astype(float) @ b(w, 1).astype(float).T,
        c(g, 1).astype(float) @ d(w, 0).astype(float),
        e(g, 0).astype(float).T @ f(x, 0).astype(float),
    )
