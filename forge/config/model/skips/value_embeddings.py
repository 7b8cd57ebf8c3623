"""Value embeddings: tables that add a vector of the token itself to the values of attention.

From modded-nanogpt, in the form of nanochat: a table for every other layer, and a gate for each
key/value head. A rank of tensor parallelism has the columns and gates of its heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.field import Section, opt, section
from forge.config.model.tensors import MATRIX, VALUE_EMBEDDING, TensorSpec, Uniform

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


def value_tensors(
    *, vocab: int, heads: int, head_dim: int, dim: int, new: tuple[int, int]
) -> Iterator[TensorSpec]:
    """Yield the table [vocab, heads * head_dim], and the gates [heads, channels].

    heads: of keys and values. new: as in `TensorSpec`.
    """
    name = "value_embedding"
    yield TensorSpec(
        name=f"{name}.weight",
        shape=(vocab, heads * head_dim),
        role=VALUE_EMBEDDING,
        part="value embeddings",
        tp=1,
        pieces=heads,
        new=new,
    )
    yield TensorSpec(
        name=f"{name}.gate.weight",
        shape=(heads, min(GATE_CHANNELS, dim)),
        role=MATRIX,
        part="attention",
        tp=0,
        pieces=heads,
        # Just above neutral: a sigmoid of about one half.
        initial=Uniform(0.0, 0.02),
    )
