"""A rank's elements of a decoder's parameters, and of gradients summed over tp ranks; from the
table of tensors alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EMBEDDING, EXPERT, TensorSpec

IN_BLOCK = re.compile(r"^blocks\.\d+\.")
"""What the full name of a block's tensor begins with."""


def outside_blocks(model: Decoder, *, first: bool, last: bool) -> list[TensorSpec]:
    """Tensors outside blocks, of a part with the first block, the last, or both."""
    tables, outputs = model.outside()
    tied = [tensor for tensor in tables if tensor.role == EMBEDDING and model.tie_embeddings]
    return [*(tables if first else tied if last else ()), *(outputs if last else ())]


def elements(one: TensorSpec, *, tp: int = 1, ep: int = 1, shards: int = 1) -> int:
    """Elements on the first rank, the most of any, with rows padded to a multiple of the FSDP
    shards, as fully_shard sends tensors.

    Fewer experts than shards are cut along another dimension, if one divides.
    """
    rows, *widths = one.on_rank(tp, ep)
    fewer = one.role == EXPERT and rows < shards
    across = fewer and any(length % shards == 0 for length in widths)
    return (rows if across else -(-rows // shards) * shards) * prod(widths)


def added_up(tensors: Sequence[TensorSpec], tp: int, *, parts: bool) -> list[int]:
    """Elements of each gradient summed over tp ranks, in a block or outside.

    Counts parameters replicated on every rank, inside a layer cut over ranks. parts: ranks have
    parts of each sequence too; then replicated parameters outside such layers count as well.
    """
    layers = {_layer(tensor) for tensor in tensors if tensor.tp is not None}
    shared = (tensor for tensor in tensors if tensor.cut(tp) is None and not tensor.once)
    return [tensor.size for tensor in shared if parts or _layer(tensor) in layers]


def _layer(tensor: TensorSpec) -> str:
    """The layer of a tensor, by its name in a block, or its full name."""
    return IN_BLOCK.sub("", tensor.name).partition(".")[0]
