"""Counts of a decoder that scaling rules read."""

from __future__ import annotations

from forge.config.model.decoder import Decoder


def block_parameters(model: Decoder) -> int:
    """Weights in the blocks that are multiplied with one token."""
    return sum(spec.multiplied for spec in model.tensors() if spec.name.startswith("blocks."))


def parameters(model: Decoder) -> int:
    """Weights of blocks and output head that are multiplied with one token: without tables, norms
    and scalars. A tied table counts once, as the head.
    """
    return block_parameters(model) + model.vocab_size * model.dim
