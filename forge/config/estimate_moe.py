"""Memory that feed-forward layers, and experts in their place, keep of a token."""

from __future__ import annotations

from forge.config.model import Decoder

FP32, INT64 = 4, 8
INDICES, MORE_OF_ROOM = 4, 2
"""Tensors of one index an assignment that sorting tokens by expert leaves for backward, and those that a capacity adds."""


def feed_forward_kept(model: Decoder, ffn: int, width: int) -> int:
    """Bytes that a layer of that width keeps of one token, its input too, of which autocast makes a 16 bit copy for each matrix."""
    inputs = 1 if width == FP32 else 2 if model.is_gated else 1
    return width * (model.dim * inputs + ffn * ffn_copies(model))


def feed_forward_products(model: Decoder, ffn: int, width: int) -> int:
    """Bytes of what its matrices make of one token."""
    return width * (ffn * (2 if model.is_gated else 1) + model.dim)


def experts_kept(model: Decoder, width: int) -> int:
    """Bytes that a layer of experts keeps of one token: its copies, and what routes them. With a capacity, of the room that there is."""
    moe, ffn = model.moe, model.expert_hidden_dim
    rows = _rows(model)
    kept = width * (rows * (model.dim + ffn * ffn_copies(model)) + moe.top_k * model.dim)
    kept += (INDICES + (MORE_OF_ROOM if moe.capacity_factor else 0)) * INT64 * moe.top_k + FP32 * (moe.num_experts + 2 * moe.top_k)
    router_input = FP32 if moe.float32_gate_logits else width
    shared = moe.shared_experts * ffn
    if not shared:
        return round(kept) + router_input * model.dim
    same = model.dim * width if width == router_input else 0  # read by both
    return round(kept) + router_input * model.dim + feed_forward_kept(model, shared, width) - same


def experts_products(model: Decoder, width: int) -> int:
    """Bytes of what routers and experts make of one token, as selective recompute keeps it: not what batched products make."""
    moe, ffn = model.moe, model.expert_hidden_dim
    routed = 0 if moe.capacity_factor else moe.top_k * feed_forward_products(model, ffn, width)
    shared = feed_forward_products(model, moe.shared_experts * ffn, width) if moe.shared_experts else 0
    return routed + shared + (FP32 if moe.float32_gate_logits else width) * moe.num_experts


def ffn_copies(model: Decoder) -> int:
    """Tensors as wide as the feed-forward layer: what the activation reads and writes (ReLU only what it writes), and gate and product."""
    return (1 if model.activation == "relu" else 2) + (2 if model.is_gated else 0)


def _rows(model: Decoder) -> float:
    moe = model.moe
    return min(moe.capacity_factor * moe.top_k, moe.num_experts) if moe.capacity_factor else moe.top_k
