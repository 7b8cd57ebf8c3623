"""Backout: a share of the hidden states of the middle layer is taken off those of the last.

From modded-nanogpt; the place and the initial value are nanochat's.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Section, opt, section
from forge.config.model.tensors import GATE, TensorSpec


@section
class Backout(Section):
    backout: bool = opt(
        False,
        "take off the output of the last layer that of the middle layer, times a learned number, "
        "as in nanochat",
    )


def backout_tensors(name: str = "backout") -> Iterator[TensorSpec]:
    """Yield the factor [1]."""
    yield TensorSpec(name=f"{name}.scale", shape=(1,), role=GATE, part="scalars", initial=0.2)


def middle(n_layers: int) -> int:
    """Return the number, from 0, of the layer whose output is taken off."""
    return n_layers // 2
