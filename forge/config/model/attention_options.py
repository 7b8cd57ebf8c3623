"""Heads of attention, the tokens in sight, and the kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from forge.config.field import Condition, opt, section
from forge.config.model.stream import Stream

PACKED = Condition(
    lambda config, ranks: config.data.pack_sequences, "without data.pack_sequences=true"
)


def _where(holds: Callable[[Any], bool], otherwise: str) -> Condition:
    """Return a condition: `holds` is true of a layer in use."""
    return Condition(
        lambda config, ranks: any(holds(layer) for _, layer in config.model.in_use()), otherwise
    )


QK_NORM = _where(lambda layer: layer.qk_norm, "without model.qk_norm=true")
V_NORM = _where(lambda layer: layer.v_norm, "without model.v_norm=true")
TEMPERED = _where(lambda layer: layer.temperature_tuning, "without model.temperature_tuning=true")
WIDTHS = ("head", "all")


class Span(NamedTuple):
    """The tokens seen by attention before the present token.

    window: the last tokens, with the present token. chunk: only tokens of the same chunk, counted
    from the first token. 0 = all.
    """

    window: int = 0
    chunk: int = 0


@section
class AttentionOptions(Stream):
    """Options of the model that attention reads."""

    n_heads: int = opt(32, "attention heads", gt=0)
    n_kv_heads: int | None = opt(
        None, "key/value heads: null = n_heads (MHA), 1 = MQA, between = GQA", gt=0
    )
    head_dim: int | None = opt(None, "width of one attention head; null = dim / n_heads", gt=0)
    sliding_window_size: int = opt(
        0, "tokens of the attention window, the present one included; 0 = all before it", ge=0
    )
    chunk_attn_window_size: int = opt(
        0,
        "attention within chunks of this many tokens, counted from the first, as in Llama 4; "
        "0 = no chunks",
        ge=0,
    )
    q_bias: bool = opt(False, "add biases to the queries alone")
    k_bias: bool = opt(False, "add biases to the keys alone")
    v_bias: bool = opt(False, "add biases to the values alone")
    o_bias: bool = opt(False, "add biases to the output of attention alone")
    qk_norm: bool = opt(False, "RMSNorm over queries and keys")
    qk_norm_width: str = opt(
        "head",
        "width of the query and key norm: each head, or all heads together as in OLMo 2",
        choices=WIDTHS,
        acts_when=QK_NORM,
    )
    qk_norm_with_scale: bool = opt(
        True, "learn a scale in the query and key norm; Llama 4 has none", acts_when=QK_NORM
    )
    qk_norm_after_rope: bool = opt(
        False, "norm queries and keys after the rotation, as in Llama 4", acts_when=QK_NORM
    )
    qk_scale: float = opt(
        1.0,
        "factor of queries and of keys after these norms: 1.2 in nanochat",
        gt=0,
        acts_when=QK_NORM,
    )
    v_norm: bool = opt(False, "RMSNorm over values, a head at a time")
    v_norm_with_scale: bool = opt(
        True, "learn a scale in the value norm; Gemma 4 has none", acts_when=V_NORM
    )
    query_scale: float | None = opt(
        None, "factor of the attention scores; null = 1 / sqrt(head_dim)", gt=0
    )
    attn_logits_soft_cap: float = opt(
        0.0, "cap scores by cap * tanh(scores / cap), as in Gemma 2; 0 = no cap", ge=0
    )
    attention_sink: bool = opt(
        False, "add a learned score per head to the softmax, with no value, as in gpt-oss"
    )
    fused_qkv: bool = opt(
        False,
        "compute queries, keys and values in one matrix product; checkpoints keep the three "
        "matrices",
        free=True,
    )
    share_kv_projections: bool = opt(
        False, "use the key projection for values too, before the key norm"
    )
    attention_output_gate: bool = opt(
        False, "multiply each head's output by a sigmoid gate of its token, as in Qwen3-Next"
    )
    temperature_tuning: bool = opt(
        False,
        "layers without rotation multiply queries by scale * ln(1 + floor(position / floor)) + 1, "
        "positions counted from 1, as Llama 4",
    )
    temperature_tuning_scale: float = opt(
        0.1, "scale of temperature_tuning", gt=0, acts_when=TEMPERED
    )
    temperature_tuning_floor: int = opt(
        8192,
        "floor of temperature_tuning, in tokens: before it the factor is 1",
        gt=0,
        acts_when=TEMPERED,
    )
    sdpa_backend: str = opt(
        "auto",
        "kernel of scaled dot-product attention",
        choices=("auto", "flash", "efficient", "cudnn", "math"),
    )
    document_attention: str = opt(
        "auto",
        "how documents that share a row are kept apart: by a mask of seq_len^2, or by "
        "flex_attention, which passes over blocks of them; auto = flex where a compiled run on a "
        "GPU can",
        choices=("auto", "mask", "flex"),
        acts_when=PACKED,
    )

    @property
    def computed_head_dim(self) -> int:
        """Width of one attention head, with null resolved to dim / n_heads."""
        return self.dim // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def attention_biases(self) -> dict[str, bool]:
        """Whether q, k, v and o have biases."""
        biases = {"q": self.q_bias, "k": self.k_bias, "v": self.v_bias, "o": self.o_bias}
        return {name: self.bias or bias for name, bias in biases.items()}

    def seen(self, seq_len: int) -> int:
        """Return the number of tokens seen by attention in a sequence of this length."""
        return min(*(width or seq_len for width in self.span), seq_len)

    @property
    def span(self) -> Span:
        return Span(self.sliding_window_size, self.chunk_attn_window_size)
