"""Laws of initial values: by one standard deviation, or nanochat's table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from forge.config.field import Section, opt, section
from forge.config.model.tensors import (
    EMBEDDING,
    EXPERT,
    HEAD,
    MATRIX,
    VALUE_EMBEDDING,
    TensorSpec,
    Uniform,
)

NORMAL, NANOCHAT = "normal", "nanochat"
LAWS = (NORMAL, NANOCHAT)
STDS = {EMBEDDING: 0.8, HEAD: 0.001}
INNER = 0.4  # of a feed-forward layer's first matrices, relative to attention's


@section
class InitialLaw(Section):
    initial_law: str = opt(
        NORMAL,
        "law of the initial weights: normal with init_std, or nanochat's, by the role of each "
        "matrix: outputs into the residual stream begin at 0",
        choices=LAWS,
    )


def by_law(law: str, tensors: Iterable[TensorSpec], dim: int) -> Iterator[TensorSpec]:
    """Return the tensors with the initial values of a law. dim: width of the residual stream."""
    return iter(tensors) if law == NORMAL else (_nanochat(spec, dim) for spec in tensors)


def _nanochat(spec: TensorSpec, dim: int) -> TensorSpec:
    bound = math.sqrt(3 / dim)  # uniform numbers of standard deviation 1 / sqrt(dim)
    if spec.role in STDS:
        return replace(spec, std=STDS[spec.role])
    if spec.role not in (MATRIX, EXPERT, VALUE_EMBEDDING) or spec.initial or spec.std is not None:
        return spec
    if spec.residual:
        return replace(spec, std=0.0)
    if spec.part not in ("attention", "value embeddings"):
        bound *= INNER
    return replace(spec, initial=Uniform(-bound, bound))
