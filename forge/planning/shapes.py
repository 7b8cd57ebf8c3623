"""What a rank has of a decoder's parameters, and whose gradients tp ranks add up; from the table of
tensors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, EXPERT, TensorSpec


def outside_blocks(model: Decoder, *, first: bool, last: bool) -> list[TensorSpec]:
    """Those of a part of the model that has what is before the first and after the last block."""
    tables, outputs = model.outside()
    tied = [tensor for tensor in tables if tensor.role == EMBEDDING and model.tie_embeddings]
    return [*(tables if first else tied if last else ()), *(outputs if last else ())]


def elements(one: TensorSpec, *, tp: int = 1, ep: int = 1, shards: int = 1) -> int:
    """Elements on the first rank, which no other has more of, with the rows filled up to a multiple
    of the FSDP shards, as fully_shard sends them.

    Fewer experts than shards are cut across, where that goes.
    """
    rows, *widths = one.on_rank(tp, ep)
    fewer = one.role == EXPERT and rows < shards
    across = fewer and any(length % shards == 0 for length in widths)
    return (rows if across else -(-rows // shards) * shards) * prod(widths)


def added_up(tensors: Sequence[TensorSpec], tp: int, *, parts: bool) -> int:
    """Elements of gradients that are the sum of what tp ranks find, of a block or outside of one.

    They are of what every rank has all of, inside of a layer, of which ranks have parts. parts:
    ranks have parts of each sequence too; then also those outside of layers.
    """
    layers = {tensor.name.split(".")[0] for tensor in tensors if tensor.tp is not None}
    shared = (tensor for tensor in tensors if tensor.cut(tp) is None and not tensor.once)
    return sum(tensor.size for tensor in shared if parts or tensor.name.split(".")[0] in layers)
