"""Heads of attention, what they see, and how it is computed."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Condition, opt
from forge.config.stream import Stream

PACKED = Condition(
    lambda config, ranks: config.data.pack_sequences, "without data.pack_sequences=true"
)


@dataclass(kw_only=True)
class AttentionOptions(Stream):
    """Options of the model that attention reads."""

    n_heads: int = opt(32, "attention heads", gt=0)
    n_kv_heads: int | None = opt(
        None, "key/value heads: null = n_heads (MHA), 1 = MQA, between = GQA", gt=0
    )
    head_dim: int | None = opt(None, "width of one attention head; null = dim / n_heads", gt=0)
    sliding_window_size: int = opt(
        0, "tokens that attention sees, with the present one; 0 = all before it", ge=0
    )
    q_bias: bool = opt(False, "add biases to the queries alone")
    k_bias: bool = opt(False, "add biases to the keys alone")
    v_bias: bool = opt(False, "add biases to the values alone")
    o_bias: bool = opt(False, "add biases to the output of attention alone")
    qk_norm: bool = opt(
        False, "RMSNorm over queries and keys, a head at a time, before the rotation"
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
        own = {"q": self.q_bias, "k": self.k_bias, "v": self.v_bias, "o": self.o_bias}
        return {name: self.bias or each for name, each in own.items()}

    def seen(self, seq_len: int) -> int:
        """Tokens that attention sees of a sequence of that length."""
        return min(self.sliding_window_size or seq_len, seq_len)
