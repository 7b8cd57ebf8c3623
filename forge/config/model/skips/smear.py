"""Smear: each token's embedding takes some of the embedding of the token before, by a gate.

From modded-nanogpt; the gate and its initial values are nanochat's.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Section, opt, section
from forge.config.model.tensors import GATE, TensorSpec, Uniform

GATE_CHANNELS = 24  # channels of the token read by the gate


@section
class Smear(Section):
    smear: bool = opt(
        False,
        "add to the embedding of a token that of the token before, times a learned gate, as in "
        "nanochat; not across documents that are kept apart",
    )


def smear_tensors(dim: int, name: str = "smear") -> Iterator[TensorSpec]:
    """Yield the gate [1, channels] and its factor [1]. dim: width of the residual stream."""
    shape = (1, min(GATE_CHANNELS, dim))
    start = Uniform(0.0, 0.02)
    yield TensorSpec(name=f"{name}.gate", shape=shape, role=GATE, part="scalars", initial=start)
    yield TensorSpec(name=f"{name}.scale", shape=(1,), role=GATE, part="scalars", initial=0.0)
