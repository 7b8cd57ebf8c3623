"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import section
from forge.config.model.activations import FP32, Kept, Named, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import Mixer
from forge.config.model.tensors import BIAS, TensorSpec, linear, norm
from forge.config.rule import Findings, nearest_divisor, rule


@section
class Attention(Mixer):
    """Multi-head attention; its heads, biases and window are options of the model."""

    schema_name = "attention"
    reads_documents = True
    clips_qk = True
    _target_: str = "forge.models.attention.Attention"

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        dim, head_dim, biases = layer.dim, layer.computed_head_dim, layer.attention_biases
        heads, kv_heads, part = layer.n_heads, layer.kv_heads, "attention"
        if layer.attention_sink:
            vector: dict[str, Any] = {"role": BIAS, "part": part, "tp": 0, "pieces": heads}
            yield TensorSpec(name="sinks", shape=(heads,), **vector)
        heads_of = {"q": heads * (2 if layer.attention_output_gate else 1), "k": kv_heads}
        if not layer.share_kv_projections:
            heads_of["v"] = kv_heads
        for name, number in heads_of.items():
            pieces = heads if name == "q" else kv_heads
            cut: dict[str, Any] = {"tp": 0, "pieces": pieces, "bias": biases[name]}
            yield from linear(f"w{name}", number * head_dim, dim, part=part, **cut)
        last = {"bias": biases["o"], "residual": True}
        yield from linear("wo", dim, heads * head_dim, part=part, tp=1, **last)
        of_norm: dict[str, Any] = {"part": part, "unit_offset": layer.norm_unit_offset}
        if layer.qk_norm and layer.qk_norm_with_scale:
            for name, number in (("q_norm", heads), ("k_norm", kv_heads)):
                over_all = layer.qk_norm_width == "all"
                wide: dict[str, Any] = {"tp": 0, "pieces": number} if over_all else {}
                width = number * head_dim if over_all else head_dim
                yield from norm(name, width, **of_norm, **wide)
        if layer.v_norm and layer.v_norm_with_scale:
            yield from norm("v_norm", head_dim, **of_norm)

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return 12 * width of all heads * the tokens seen by one token.

        Causality takes nothing off (PaLM, arXiv:2204.02311, appendix B).
        """
        return 12 * layer.n_heads * layer.computed_head_dim * layer.seen(seq_len)

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        width, head_dim, seq = numbers.width, layer.computed_head_dim, numbers.seq_len
        heads, kv_heads = -(-layer.n_heads // numbers.tp), -(-layer.kv_heads // numbers.tp)
        seen, capped, sink = layer.seen(seq), layer.attn_logits_soft_cap > 0, layer.attention_sink
        window, by_chunk = (0 < size < seq and not numbers.masked for size in layer.span)
        by_block = window and seq % seen == 0  # `forge.models.sdpa`
        key_copies = (2 * seq - seen) / seq if by_block else 1.0  # how often keys are copied
        partition, scores, inner, token_share = float(FP32 * heads), 0.0, head_dim, 1.0
        if capped:
            at_once = seen * key_copies if by_block or by_chunk else seq
            partition, scores = 0.0, self._written_out(layer, heads, at_once, numbers)
        elif sink:  # a further dimension, and a token before all others
            inner += 8 if numbers.cuda else 1
            token_share += (-(-seq // seen) if by_chunk else 1) / seq
        repeated = capped or (numbers.cuda and (numbers.masked or window))
        keys = 2 * (heads if repeated else kv_heads) * key_copies
        output = token_share * (width * heads * inner + partition)
        copied = by_block or (by_chunk and seq % seen > 0) or sink  # for the last matrix
        copies = (copied and not capped) + 2 * bool(layer.attention_output_gate)
        parts = width * heads * head_dim * copies
        read = token_share * width * (heads + keys) * inner
        total = read + output + parts + scores + self._norms(layer, numbers)
        tensors = self._projections(layer, numbers)
        if not capped:
            tensors["context"] = Named(bytes=output, flops=self.flops(layer, seq) / 3)
        tensors["out_proj"] = numbers.to_stream(layer.dim, layer.n_heads * head_dim)
        return Kept(all=total, named=tensors)

    def _projections(self, layer: LayerShape, numbers: Numbers) -> dict[str, Named]:
        """Return the outputs of the products for queries, keys and values, by name."""
        heads, kv_heads = -(-layer.n_heads // numbers.tp), -(-layer.kv_heads // numbers.tp)
        width = layer.computed_head_dim * numbers.tp
        of_queries = 2 * heads if layer.attention_output_gate else heads
        wide = {"query_proj": of_queries, "key_proj": kv_heads}
        wide |= {} if layer.share_kv_projections else {"value_proj": kv_heads}
        return {name: numbers.product(number * width, layer.dim) for name, number in wide.items()}

    def _written_out(self, layer: LayerShape, heads: int, keys: float, numbers: Numbers) -> float:
        """Return the bytes a token of scores written out without a kernel.

        Scores are kept as tanh, softmax and a copy of the softmax in 16 bits.
        """
        copy = numbers.width if numbers.width != FP32 else 0
        return heads * (FP32 * (2 * keys + layer.attention_sink) + copy * keys)

    def _norms(self, layer: LayerShape, numbers: Numbers) -> float:
        """Return the bytes a token of norms of queries, keys and values."""
        width, head_dim = numbers.width, layer.computed_head_dim
        heads, kv_heads = -(-layer.n_heads // numbers.tp), -(-layer.kv_heads // numbers.tp)

        def norm(number: int, dim: int, weighted: bool) -> int:
            saved = 0 if weighted or numbers.cuda else FP32 * dim
            return number * (numbers.rms_norm(dim, width) - saved)

        total = norm(kv_heads, head_dim, layer.v_norm_with_scale) if layer.v_norm else 0
        if layer.qk_norm:
            for number in (heads, kv_heads):
                wide = (
                    (1, number * head_dim) if layer.qk_norm_width == "all" else (number, head_dim)
                )
                total += norm(*wide, layer.qk_norm_with_scale)
            itself = numbers.cuda or width == FP32  # the norm's input is no copy
            if itself and not layer.qk_norm_after_rope:
                gates = heads if layer.attention_output_gate else 0
                values = kv_heads if layer.share_kv_projections else 0
                total += width * head_dim * (gates - values)
        return total


@rule("model.heads", "model.dim", "model.n_heads", "model.head_dim")
def heads(model: LayerShape) -> Findings:
    """model.dim must be divisible by model.n_heads, or model.head_dim be given."""
    needed = model.head_dim is None and "head_dim" not in model.mixer.unread
    if needed and model.dim % model.n_heads:
        yield "model.n_heads", f"model.n_heads={nearest_divisor(model.dim, model.n_heads)}"


@rule("model.kv_heads", "model.n_heads", "model.n_kv_heads", "model.kinds", "model.layers")
def kv_heads(model: LayerShape) -> Findings:
    """model.n_heads must be divisible by model.n_kv_heads: each key/value head serves equally many
    query heads.
    """
    for path, layer in model.in_use():
        heads, kv_heads = layer.n_heads, layer.kv_heads
        if heads % kv_heads:
            hint = f"{path}.n_kv_heads={nearest_divisor(heads, kv_heads)}"
            if path == "model":
                yield "model.n_kv_heads", hint
            else:
                message = f"{path}: {heads} heads must be divisible by {kv_heads} key/value heads."
                yield path, message, hint


SPANS = ("model.sliding_window_size", "model.chunk_attn_window_size", "model.kinds", "model.layers")


@rule("model.chunk_attn_window_size", *SPANS)
def spans(model: LayerShape) -> Findings:
    """A layer sees a window or chunks, not both: one of model.sliding_window_size and
    model.chunk_attn_window_size is 0.
    """
    for path, layer in model.in_use():
        if all(layer.span):
            message = (
                f"{path} has a window of {layer.span.window} and chunks of {layer.span.chunk}."
            )
            hint = f"{path}.sliding_window_size=0, or {path}.chunk_attn_window_size=0"
            yield f"{path}.chunk_attn_window_size", message, hint


@rule(
    "model.capped_kernel",
    "model.sdpa_backend",
    "model.attn_logits_soft_cap",
    "model.kinds",
    "model.layers",
)
def capped_kernel(model: LayerShape) -> Findings:
    """No kernel caps scores: with model.attn_logits_soft_cap they are written out, and
    model.sdpa_backend is auto or math.
    """
    for path, layer in model.in_use():
        if layer.attn_logits_soft_cap and layer.sdpa_backend not in ("auto", "math"):
            message = f"the {layer.sdpa_backend} kernel caps no scores: they are written out."
            hint = f"{path}.sdpa_backend=auto, or {path}.attn_logits_soft_cap=0"
            yield f"{path}.sdpa_backend", message, hint


@rule("model.temperature_tuning", "model.temperature_tuning", "model.position", *SPANS[2:])
def temperature_tuning(model: LayerShape) -> Findings:
    """model.temperature_tuning is of layers without rotary positions: there must be one."""
    layers = [layer for _, layer in model.in_use()]
    if any(layer.temperature_tuning for layer in layers) and not any(
        layer.is_tempered for layer in layers
    ):
        hint = "model.temperature_tuning=false, or model.position=none, of a kind of layer too"
        yield "model.temperature_tuning", hint


@rule("model.share_kv_projections", "model.share_kv_projections", "model.k_bias", "model.v_bias")
def share_kv_projections(model: LayerShape) -> Findings:
    """With model.share_kv_projections values have no projection, and so no bias of their own."""
    for path, layer in model.in_use():
        shared = layer.share_kv_projections and "v_bias" not in layer.mixer.unread
        if shared and layer.v_bias and not layer.attention_biases["k"]:
            message = f"{path}.v_bias: values are made by the layer of the keys."
            yield f"{path}.v_bias", message, f"{path}.v_bias=false, or {path}.k_bias=true too"
