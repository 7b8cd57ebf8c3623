"""Inputs of single layers: a vector of each token for each layer, as in the small Gemma 4.

The vectors are rows of a second table, and a projection of the embeddings is added to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import Section, opt, section
from forge.config.model.tensors import MATRIX, VALUE_EMBEDDING, TensorSpec, linear, norm

PER_LAYER = "model.per_layer_input_width"
PART = "inputs of layers"


@section
class LayerInputs(Section):
    per_layer_input_width: int = opt(
        0,
        "width of a vector of each token for each layer, of a table of its own, which enters "
        "behind the feed-forward layer through a gate, as in Gemma 4 E2B; 0 = none",
        ge=0,
    )


def layer_input_table(
    *, width: int, layers: int, vocab: int, dim: int, new: tuple[int, int], unit_offset: bool
) -> Iterator[TensorSpec]:
    """Yield the tensors that all layers share: the table, the projection of embeddings, its norm.

    width: of a vector. new: as in `TensorSpec`.
    """
    name, total = "layer_inputs", layers * width
    table: dict[str, Any] = {"shape": (vocab, total), "role": VALUE_EMBEDDING, "tp": 0, "new": new}
    yield TensorSpec(name=f"{name}.table.weight", part=PART, **table)
    shape = (total, dim)
    yield TensorSpec(name=f"{name}.projection.weight", shape=shape, role=MATRIX, part=PART)
    yield from norm(f"{name}.norm", width, part=PART, unit_offset=unit_offset)


def layer_input_tensors(width: int, dim: int, *, unit_offset: bool) -> Iterator[TensorSpec]:
    """Yield the tensors of one block: gate, projection to the stream, norm."""
    yield from linear("layer_input_gate", width, dim, part=PART)
    yield from linear("layer_input_projection", dim, width, part=PART, residual=True)
    yield from norm("layer_input_norm", dim, unit_offset=unit_offset)
