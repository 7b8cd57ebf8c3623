"""Factors of products whose weight is cut over the ranks of tensor parallelism.

A scale is of a whole tensor or row, so that parts are rounded as on one device: ranks agree on the
largest value wherever each has a part of it. Only numbers travel, one a tensor or a row.
"""

from __future__ import annotations

from forge.quantization.rounding import Spread

Factors = tuple[Spread | None, Spread | None]
"""Both factors of a product, with summed dimension last; None = every rank has the whole."""


def spread_factors(dim: int | None = None, group: str = "") -> tuple[Factors, Factors, Factors]:
    """The factors of output, grad_input and grad_weight, for a weight [out, in] cut in `dim`.

    With `out` cut, every rank reads the whole input, and has a part of the output and its gradient;
    with `in` cut, a part of the input, and the whole gradient of the sum of all outputs.
    """
    if dim is None:
        return (None, None), (None, None), (None, None)
    rows, summed = Spread(group, summed=False), Spread(group, summed=True)
    if dim == 0:
        return (None, rows), (summed, summed), (rows, None)
    return (summed, summed), (None, rows), (None, rows)
