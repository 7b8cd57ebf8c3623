"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.config.activations import FP32, Kept, Numbers
from forge.config.mixers.base import Mixer
from forge.config.rule import Findings, nearest_divisor, rule
from forge.config.tensors import TensorSpec, linear, norm

if TYPE_CHECKING:
    from forge.config.model import Decoder


@dataclass(kw_only=True)
class Attention(Mixer):
    """Multi-head attention; its heads, biases and window are options of the model."""

    schema_name = "attention"
    reads_documents = True
    clips_qk = True
    _target_: str = "forge.models.attention.Attention"

    def tensors(self, layer: Decoder) -> Iterator[TensorSpec]:
        dim, head_dim, biases = layer.dim, layer.computed_head_dim, layer.attention_biases
        for name, heads in (("q", layer.n_heads), ("k", layer.kv_heads), ("v", layer.kv_heads)):
            cut: dict[str, Any] = {"tp": 0, "pieces": heads, "bias": biases[name]}
            yield from linear(f"w{name}", heads * head_dim, dim, part="attention", **cut)
        width, last = layer.n_heads * head_dim, {"bias": biases["o"], "residual": True}
        yield from linear("wo", dim, width, part="attention", tp=1, **last)
        for name in ("q_norm", "k_norm") if layer.qk_norm else ():
            yield from norm(name, head_dim, part="attention", unit_offset=layer.norm_unit_offset)

    def flops(self, layer: Decoder, seq_len: int) -> int:
        """12 * width of all heads * the tokens that one sees, of which causality takes nothing off
        (PaLM, arXiv:2204.02311, appendix B).
        """
        return 12 * layer.n_heads * layer.computed_head_dim * layer.seen(seq_len)

    def kept(self, layer: Decoder, numbers: Numbers) -> Kept:
        width, head_dim = numbers.width, layer.computed_head_dim
        heads, kv_heads = -(-layer.n_heads // numbers.tp), -(-layer.kv_heads // numbers.tp)
        norms = (heads + kv_heads) * numbers.rms_norm(head_dim, width) if layer.qk_norm else 0
        made = width * (heads + 2 * kv_heads) * head_dim
        output = width * heads * head_dim + FP32 * heads  # and the log-partition of each head
        window, seq = layer.seen(numbers.seq_len), numbers.seq_len
        repeated = numbers.masked and numbers.cuda  # keys, as often as heads read them
        joined, keys = 0, 2 * (heads if repeated else kv_heads)
        by_block = window < seq and seq % window == 0 and not numbers.masked
        if by_block:  # `forge.models.sdpa`
            joined = width * heads * head_dim
            keys = 2 * (heads if numbers.cuda else kv_heads) * (2 * seq - window) / seq
        read = width * (heads + keys) * head_dim
        all = read + output + joined + norms
        return Kept(all=all, products=made + output + width * layer.dim)


@rule("model.heads", "model.dim", "model.n_heads", "model.head_dim")
def heads(model: Decoder) -> Findings:
    """model.dim must be divisible by model.n_heads, or model.head_dim be given."""
    needed = model.head_dim is None and "head_dim" not in model.mixer.unread
    if needed and model.dim % model.n_heads:
        yield "model.n_heads", f"model.n_heads={nearest_divisor(model.dim, model.n_heads)}"


@rule("model.kv_heads", "model.n_heads", "model.n_kv_heads", "model.kinds", "model.layers")
def kv_heads(model: Decoder) -> Findings:
    """model.n_heads must be divisible by model.n_kv_heads: each key/value head serves equally many
    query heads.
    """
    for place, layer in model.in_use():
        heads, kv_heads = layer.n_heads, layer.kv_heads
        if heads % kv_heads:
            fix = f"{place}.n_kv_heads={nearest_divisor(heads, kv_heads)}"
            if place == "model":
                yield "model.n_kv_heads", fix
            else:
                what = f"{place}: {heads} heads must be divisible by {kv_heads} key/value heads."
                yield place, what, fix
