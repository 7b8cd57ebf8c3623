"""Tokens that the experts of a rank read, and bytes gathered for them by parallel.ep_method."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.root import Config

INT32 = 4


def gathers(config: Config, model: Decoder) -> bool:
    """Whether ranks gather tokens: with a capacity they exchange equal numbers of rows."""
    return config.parallel.gathers_tokens and not model.moe.capacity_factor


def rows_held(config: Config, model: Decoder) -> float:
    """Rows for the experts of a rank, filled or not, for a token of the rank."""
    moe, parallel = model.moe, config.parallel
    most = parallel.ep * min(moe.top_k, moe.num_experts // parallel.ep)
    return min(parallel.ep_rows_factor * moe.top_k or most, most)


def gathered_bytes(
    config: Config, model: Decoder, width: int
) -> Iterator[tuple[str, float, int, int]]:
    """Yield for a layer (name, bytes of all ranks for a token of a rank, collectives of a forward
    pass, and of a backward pass).
    """
    moe, ranks, parts = model.moe, config.parallel.ep, config.parallel.ep_overlap_degree
    hidden = ranks * width * model.dim / parts
    weights = ranks * moe.top_k * (FP32 if moe.float32_gate_logits else width)
    yield "ep: all-gather of tokens", hidden, parts, parts
    yield "ep: reduce-scatter of outputs", hidden, parts, parts
    yield "ep: all-gather of choices", ranks * moe.top_k * INT32, 1, 0
    yield "ep: all-gather of choices", weights, 1, 0
    yield "ep: reduce-scatter of their gradients", weights, 0, 1
    if moe.gradient_scale:
        yield "ep: all-gather of choices", ranks * moe.top_k * FP32, 1, 0
