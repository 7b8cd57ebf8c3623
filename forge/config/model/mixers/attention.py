"""Causal self-attention with grouped key/value heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forge.config.field import section
from forge.config.model.activations import FP32, Kept, Named, Numbers
from forge.config.model.block_attention import MOBA
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import Mixer
from forge.config.model.skips.value_embeddings import value_tensors
from forge.config.model.tensors import BIAS, TensorSpec, linear, norm
from forge.config.model.window_pattern import LONG, SHORT
from forge.config.rule import Findings, nearest_divisor, rule

if TYPE_CHECKING:
    from forge.config.parallel import Parallel


@section
class Attention(Mixer):
    """Multi-head attention; its heads, biases and window are options of the model."""

    schema_name = "attention"
    reads_documents = True
    clips_qk = True
    goes_round = True
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
        if layer.value_embeddings:
            shape = {"vocab": layer.vocab_size, "heads": kv_heads, "head_dim": head_dim, "dim": dim}
            first, end = layer.new_rows
            yield from value_tensors(**shape, new=(first, end))

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return 12 * width of all heads * the tokens seen by one token.

        Causality takes nothing off (PaLM, arXiv:2204.02311, appendix B). Of windows by a pattern
        the present token is left out, as nanochat counts.
        """
        seen = layer.seen(seq_len)
        if layer.window_pattern and layer.sliding_window_size:
            seen = min(layer.sliding_window_size - 1, seq_len)
        width = layer.n_heads * layer.computed_head_dim
        # A product with the mean of each block, without gradient.
        blocks = seq_len // layer.moba_chunk_size if layer.chooses_blocks(seq_len) else 0
        return 12 * width * seen + 2 * width * blocks

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        heads, kv_heads = -(-layer.n_heads // numbers.tp), -(-layer.kv_heads // numbers.tp)
        of_heads, keys = numbers.width * layer.computed_head_dim, kv_heads
        capped = layer.attn_logits_soft_cap > 0 and not numbers.around
        spanned = numbers.masked or layer.seen(numbers.seq_len) < numbers.seq_len
        if capped or (spanned and not numbers.around):
            keys = heads  # kernels with a mask read keys and values repeated for all heads
        read = 2 * heads + 2 * keys * numbers.keys
        if layer.qk_norm:
            read += (heads + kv_heads) * (numbers.of_norm if layer.qk_norm_with_scale else 1)
        read += kv_heads if layer.value_embeddings else 0  # vectors of the tokens, for the gates
        scores = remade = 0.0
        if capped:  # no kernel: tanh and softmax, in 16 bits a copy; compiled the softmax alone
            copy = numbers.width if numbers.width < FP32 else 0
            entries = heads * min(numbers.seq_len, 2 * layer.seen(numbers.seq_len))
            scores, remade = entries * (2 * FP32 + copy), entries * (FP32 + copy)
        if layer.chooses_blocks(numbers.seq_len):  # a mask for each head
            scores += heads * numbers.seq_len * numbers.width
        width = layer.computed_head_dim * numbers.tp
        of_queries = 2 * heads if layer.attention_output_gate else heads
        wide = {"query_proj": of_queries, "key_proj": kv_heads}
        wide |= {} if layer.share_kv_projections else {"value_proj": kv_heads}
        tensors = {name: numbers.product(n * width, layer.dim) for name, n in wide.items()}
        if not capped:
            flops = self.flops(layer, numbers.seq_len) / 3
            tensors["context"] = Named(bytes=heads * of_heads, flops=flops)
        tensors["out_proj"] = numbers.to_stream(layer.dim, layer.n_heads * layer.computed_head_dim)
        return Kept(all=of_heads * read + scores, named=tensors, remade=remade)


@rule("parallel.cp_ring", "parallel.cp", "parallel.cp_method", "model.mixer", "model.kinds", MOBA)
def cp_ring(model: LayerShape, parallel: Parallel) -> Findings:
    """parallel.cp_method=ring merges softmaxes over parts of the keys: attention by itself, without
    a choice among all keys.
    """
    if parallel.cp == 1 or parallel.cp_method != "ring":
        return
    for path, layer in model.in_use():
        name, reason = layer.mixer.schema_name or layer.mixer._target_, ""
        if not (layer.mixer.goes_round or layer.mixer.recurrent):
            reason = f"{path}.mixer is {name}, whose scores forge does not know."
        elif layer.moba:
            reason = f"{path}.moba=true chooses among the blocks of all keys."
        if reason:
            yield "parallel.cp_method", reason, "parallel.cp_method=all_gather"
            return


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


PATTERN, VALUES = "model.window_pattern", "model.value_embeddings"
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
    PATTERN,
    PATTERN,
    "model.sliding_window_size",
    "model.chunk_attn_window_size",
    "model.kinds",
    "model.layers",
)
def window_pattern(model: LayerShape) -> Findings:
    """model.window_pattern is of the letters S and L, and sets the windows of all layers alone."""
    pattern = model.window_pattern
    if not pattern:
        return
    if others := sorted(set(pattern.upper()) - {SHORT, LONG}):
        message = f"model.window_pattern={pattern} has {others[0]!r}, and a layer is S or L."
        yield PATTERN, message, "model.window_pattern=SSSL"
    for layer_key, layer in model.in_use():
        for option in ("sliding_window_size", "chunk_attn_window_size"):
            if getattr(layer, option):
                message = f"{layer_key}.{option} sets a window beside model.window_pattern."
                yield f"{layer_key}.{option}", message, f"{layer_key}.{option}=0"


@rule(VALUES, VALUES, "model.mixer", "model.kinds", "model.layers")
def value_embeddings(model: LayerShape) -> Findings:
    """model.value_embeddings is for the values of attention: some layer must have them."""
    unread = ["value_embeddings" in layer.mixer.unread for _, layer in model.in_use()]
    if model.value_embeddings and all(unread):
        yield VALUES, f"{VALUES}=false"


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


@rule(MOBA, MOBA, PATTERN, *SPANS)
def moba_span(model: LayerShape) -> Findings:
    """model.moba chooses among all blocks of keys before a token: its layers have no window and no
    chunks.
    """
    for path, layer in model.in_use():
        if not layer.moba or "moba" in layer.mixer.unread:
            continue
        if model.window_pattern:
            message = f"{path}.moba=true and {PATTERN} both limit the keys."
            yield f"{path}.moba", message, f"{path}.moba=false, or {PATTERN}=''"
        elif any(layer.span):
            option = "sliding_window_size" if layer.span.window else "chunk_attn_window_size"
            message = f"{path}.moba=true and {path}.{option}={max(layer.span)} both limit the keys."
            yield f"{path}.moba", message, f"{path}.moba=false, or {path}.{option}=0"


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
