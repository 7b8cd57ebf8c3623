"""Value embeddings: tables that add a vector of the token itself to the values of attention.

From modded-nanogpt, in the form of nanochat: a table for every other layer, and a gate for each
key/value head. A rank of tensor parallelism has the columns and gates of its heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forge.config.field import Section, opt, section
from forge.config.model.tensors import MATRIX, VALUE_EMBEDDING, TensorSpec, Uniform

if TYPE_CHECKING:
    from forge.config.model.layer import LayerShape

GATE_CHANNELS = 12  # channels of the layer's input read by the gates


@section
class ValueEmbeddings(Section):
    value_embeddings: bool = opt(
        False,
        "add to the values of attention a learned vector of the token, times gates of the heads, "
        "in every other layer and always in the last, as in nanochat",
    )


def has_values(layer: int, n_layers: int) -> bool:
    """Whether a layer, counted from 0, has a table of values: every other one, and the last."""
    return layer % 2 == (n_layers - 1) % 2


def value_tensors(layer: LayerShape, name: str = "value_embedding") -> Iterator[TensorSpec]:
    """Yield the table [vocab, kv_heads * head_dim], and the gates [kv_heads, channels]."""
    heads, width = layer.kv_heads, layer.kv_heads * layer.computed_head_dim
    yield TensorSpec(
        name=f"{name}.weight",
        shape=(layer.vocab_size, width),
        role=VALUE_EMBEDDING,
        part="value embeddings",
        tp=1,
        pieces=heads,
        new=tuple(layer.new_rows),  # type: ignore[arg-type]
    )
    yield TensorSpec(
        name=f"{name}.gate.weight",
        shape=(heads, min(GATE_CHANNELS, layer.dim)),
        role=MATRIX,
        part="attention",
        tp=0,
        pieces=heads,
        # Just above neutral: a sigmoid of about one half.
        initial=Uniform(0.0, 0.02),
    )
