"""Multi-head latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import opt, section
from forge.config.model.activations import Kept, Named, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import OF_HEADS, Mixer
from forge.config.model.mixers.indexer import Indexed
from forge.config.model.tensors import TensorSpec, linear, norm

PADDING = ("auto", "flash")
"""Kernels of attention for which values are padded to the width of keys: `forge.models.sdpa`."""


@section
class MLA(Indexed, Mixer):
    """Multi-head latent attention: the keys and values of all heads are made of one narrow latent
    (DeepSeek-V2, arXiv:2405.04434, section 2.1).
    """

    schema_name = "mla"
    reads_documents = True
    clips_qk = True
    goes_round = True
    unread = (*OF_HEADS, "bias")
    _target_: str = "forge.models.mla.MLA"
    q_lora_rank: int = opt(0, "width of the latent of queries; 0 = made of the token itself", ge=0)
    kv_lora_rank: int = opt(512, "width of the latent of keys and values", gt=0)
    qk_nope_head_dim: int = opt(128, "width of a head's queries and keys that stays as it is", gt=0)
    qk_rope_head_dim: int = opt(64, "width of them that is rotated; all heads share its key", gt=0)
    v_head_dim: int = opt(128, "width of a head's values", gt=0)
    latent_norm_eps: float | None = opt(
        None,
        "epsilon of the norms of the two latents; null = model.norm_eps; transformers' DeepSeek "
        "has 1e-6 whatever the others have",
        gt=0,
    )
    mla_naive_kvcache: bool = opt(
        True, "generation keeps keys and values of all heads; false = the latent they are made of"
    )

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def reads_choice(self) -> bool:
        return self.use_indexer and self.indexer_shared

    def cached(self, layer: LayerShape, tp: int) -> int:
        key = self.indexer_head_dim if self.has_indexer else 0
        if self.mla_naive_kvcache:
            return layer.n_heads // tp * (self.qk_head_dim + self.v_head_dim) + key
        return self.kv_lora_rank + self.qk_rope_head_dim + key

    def rotary_dim(self, layer: LayerShape) -> int:
        return layer.rotated(self.qk_rope_head_dim)

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        dim, heads, part = layer.dim, layer.n_heads, "attention"
        of_heads: dict[str, Any] = {"part": part, "tp": 0, "pieces": heads}
        of_norm: dict[str, Any] = {"part": part, "unit_offset": layer.norm_unit_offset}
        if self.q_lora_rank:
            yield from linear("wq_a", self.q_lora_rank, dim, part=part)
            yield from norm("q_norm", self.q_lora_rank, **of_norm)
        wide, queries = ("wq_b", self.q_lora_rank) if self.q_lora_rank else ("wq", dim)
        yield from linear(wide, heads * self.qk_head_dim, queries, **of_heads)
        yield from linear("wkv_a", self.kv_lora_rank + self.qk_rope_head_dim, dim, part=part)
        yield from norm("kv_norm", self.kv_lora_rank, **of_norm)
        key_value_width = self.qk_nope_head_dim + self.v_head_dim
        yield from linear("wkv_b", heads * key_value_width, self.kv_lora_rank, **of_heads)
        yield from linear("wo", dim, heads * self.v_head_dim, part=part, tp=1, residual=True)
        if self.has_indexer:
            yield from self.indexer_tensors(dim, self.q_lora_rank)

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return 6 * heads * (width of keys + of values) * the tokens read by one token, and the
        FLOPs of an indexer.
        """
        heads, read = layer.n_heads, self.read_keys(layer, seq_len)
        of_scores = heads * self.qk_head_dim
        of_indexer = self.indexer_flops(layer, seq_len, self.q_lora_rank, of_scores)
        return 6 * heads * (self.qk_head_dim + self.v_head_dim) * read + of_indexer

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept | None:
        if layer.seen(numbers.seq_len) < numbers.seq_len or layer.attn_logits_soft_cap:
            return None
        width, heads = numbers.width, -(-layer.n_heads // numbers.tp)
        qk, v = self.qk_head_dim, self.v_head_dim
        key_value_width = self.qk_nope_head_dim + v
        # before and after their norms
        latents = (1 + numbers.of_norm) * (self.q_lora_rank + self.kv_lora_rank)
        copied, out = 0, v
        keys = qk + key_value_width if numbers.keys == 1 else numbers.keys * (qk + v)
        read = latents + heads * (qk + v + keys)
        if v < qk and layer.sdpa_backend in PADDING and numbers.keys == 1:
            copied, out = heads * v, qk  # values are padded to the width of keys
            read = latents + heads * 4 * qk + copied
        of_indexer = self.indexer_kept(numbers) if self.use_indexer else 0
        dim, latent = layer.dim, self.q_lora_rank
        tensors = {"query_wa_proj": numbers.product(latent, dim, 1)} if latent else {}
        tensors |= {
            "mla_q": numbers.product(heads * qk * numbers.tp, latent or dim),
            "kv_wa_proj": numbers.product(self.kv_lora_rank + self.qk_rope_head_dim, dim, 1),
            "mla_kv": numbers.product(heads * key_value_width * numbers.tp, self.kv_lora_rank),
            "context": Named(
                bytes=width * heads * out, flops=self.flops(layer, numbers.seq_len) / 3
            ),
            "out_proj": numbers.to_stream(dim, layer.n_heads * v),
        }
        if v > qk:  # no kernel but cuDNN's takes such values
            del tensors["context"]
        return Kept(all=width * read + of_indexer, named=tensors, remade=width * copied)
