"""Memory that feed-forward layers, and experts in their place, keep of a token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forge.config.model import Decoder
from forge.config.parallel import Parallel
from forge.config.root import Config

FP32, INT64 = 4, 8
INDICES, MORE_OF_ROOM, MORE_OF_EXCHANGE = 4, 2, 2
"""Tensors of one index an assignment that sorting tokens by expert leaves for backward, and those
that a capacity or ep adds.
"""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """share: of the blocks, that have experts. rows: that these compute for a token. exchanged:
    whether they come from other ranks.
    """

    share: float
    rows: float
    exchanged: bool


def feed_forward_kept(model: Decoder, ffn: int, width: int) -> int:
    """Bytes that a layer of that width keeps of one token, its input too."""
    return width * (model.dim + ffn * ffn_copies(model))


def feed_forward_products(model: Decoder, ffn: int, width: int) -> int:
    """Bytes of what its matrices make of one token."""
    return width * (ffn * (2 if model.is_gated else 1) + model.dim)


def experts_kept(model: Decoder, mixture: Mixture, ffn: int, width: int) -> int:
    """Bytes that a layer of experts of that width keeps of one token: its copies, or the room for
    them, and what routes them.
    """
    kept = _routing_kept(model, mixture, width) + round(
        width * mixture.rows * ffn * ffn_copies(model)
    )
    shared, router_input = model.moe.shared_experts * ffn, _router_input(model, width)
    if not shared:
        return kept
    same = model.dim * width if width == router_input else 0  # read by both
    return kept + feed_forward_kept(model, shared, width) - same


def experts_kept_around(model: Decoder, mixture: Mixture, ffn: int, width: int) -> int:
    """The same where selective recompute keeps what is around experts and shared experts, and the
    products inside of them.
    """
    inside = _products_of_shared(model, ffn, width) + (
        0 if model.moe.capacity_factor else mixture.rows * feed_forward_products(model, ffn, width)
    )
    shared_input = (
        width * model.dim
        if model.moe.shared_experts and _router_input(model, width) != width
        else 0
    )
    return _routing_kept(model, mixture, width) + round(inside) + shared_input


def experts_products(model: Decoder, ffn: int, width: int) -> int:
    """Bytes of what routers and experts make of one token, as selective recompute keeps it: not
    what batched products make.
    """
    moe = model.moe
    routed = 0 if moe.capacity_factor else moe.top_k * feed_forward_products(model, ffn, width)
    return (
        routed
        + _products_of_shared(model, ffn, width)
        + _router_input(model, width) * moe.num_experts
    )


def _routing_kept(model: Decoder, mixture: Mixture, width: int) -> int:
    """Inputs of router and experts, what experts give, weights and indices. As many rows come from
    other ranks as go to them.
    """
    moe = model.moe
    indices = INDICES + (
        MORE_OF_ROOM if moe.capacity_factor else MORE_OF_EXCHANGE if mixture.exchanged else 0
    )
    rows = width * round((mixture.rows + moe.top_k) * model.dim)
    return (
        rows
        + indices * INT64 * moe.top_k
        + FP32 * (moe.num_experts + 2 * moe.top_k)
        + _router_input(model, width) * model.dim
    )


def _router_input(model: Decoder, width: int) -> int:
    return FP32 if model.moe.float32_gate_logits else width


def _products_of_shared(model: Decoder, ffn: int, width: int) -> int:
    shared = model.moe.shared_experts
    return feed_forward_products(model, shared * ffn, width) if shared else 0


def ffn_copies(model: Decoder) -> int:
    """Tensors as wide as the feed-forward layer: what the activation reads and writes (ReLU only
    what it writes), and gate and product.
    """
    return (1 if model.activation == "relu" else 2) + (2 if model.is_gated else 0)


def rows_of_token(config: Config, model: Decoder, sequences: int) -> float:
    """Rows that the experts of a layer compute for a token, of so many sequences: its copies, or
    the room that there is for them.
    """
    tokens = sequences * config.train.seq_len // config.parallel.cp
    return (
        rows_of_room(config, model, sequences) / max(tokens, 1)
        if model.is_moe and model.moe.capacity_factor
        else model.moe.top_k
    )


def rows_of_room(config: Config, model: Decoder, sequences: int) -> int:
    """Rows that a capacity gives all experts together, on one rank, for so many sequences: as
    `forge.models.moe` has it.

    The tokens of a scope that are on one rank lie in runs, of which any may take all the room, but
    no more than it has tokens. So the more runs a scope is cut into, the more rows stay empty.
    """
    moe, parallel = model.moe, config.parallel
    apart = moe.balance_scope == "sequence"
    runs = max(sequences, 1) * runs_of_sequence(parallel) if apart or parallel.cp > 1 else 1
    tokens = sequences * config.train.seq_len // parallel.cp // runs
    of_scope = (
        runs_of_sequence(parallel) * parallel.cp
        if apart
        else runs * parallel.dp_replicate * parallel.fsdp
    )
    room = math.ceil(moe.capacity_factor * tokens * of_scope * moe.top_k / moe.num_experts)
    return moe.num_experts * runs * min(room, tokens)


def runs_of_sequence(parallel: Parallel) -> int:
    """Runs of tokens that a rank has of a sequence, one after another: an early and a late one
    where cp balances its work.
    """
    return (
        2
        if parallel.cp > 1 and parallel.cp_method == "all_gather" and parallel.cp_load_balance
        else 1
    )
