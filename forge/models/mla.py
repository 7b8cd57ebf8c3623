"""Multi-head latent attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mla import MLA as MLAConfig
from forge.models.cache import LayerCache
from forge.models.head import weight_of
from forge.models.mixers.indexer import Index, Indexer, Target
from forge.models.norm import make_rms_norm
from forge.models.rope import Rotation, rotate, softmax_scale
from forge.models.sdpa import WRITTEN_OUT, causal_attention, on_device, written_out

OF_KEYS = {"wkv_a": "kv_wa_proj", "wkv_b": "mla_kv"}
KEPT_NAMES = {"wq_a": "query_wa_proj", "wq_b": "mla_q", "wq": "mla_q", "wo": "out_proj"} | OF_KEYS
"""Names of the modules' outputs in `train.recompute`."""


class MLA(nn.Module):
    """Attention with keys and values made of a latent (arXiv:2405.04434, section 2.1): the key of a
    head joins an unrotated part of its own and a rotated part shared by all heads.

    A single token after others may read the latents directly (`absorbed`).
    """

    kept_names = KEPT_NAMES

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        mixer, dim, heads = section.mixer, section.dim, section.n_heads
        assert isinstance(mixer, MLAConfig)
        self.section, self.scale = mixer, softmax_scale(section, mixer.qk_head_dim)
        self.backend, self.cap = section.sdpa_backend, section.attn_logits_soft_cap
        self.window, self.chunk = section.span
        self.adjacent = section.rope_interleave
        queries = heads * mixer.qk_head_dim
        if mixer.q_lora_rank:
            self.wq_a = nn.Linear(dim, mixer.q_lora_rank, bias=False)
            self.q_norm = make_rms_norm(section, mixer.q_lora_rank, eps=mixer.latent_norm_eps)
            self.wq_b = nn.Linear(mixer.q_lora_rank, queries, bias=False)
        else:
            self.wq = nn.Linear(dim, queries, bias=False)
        self.wkv_a = nn.Linear(dim, mixer.kv_lora_rank + mixer.qk_rope_head_dim, bias=False)
        self.kv_norm = make_rms_norm(section, mixer.kv_lora_rank, eps=mixer.latent_norm_eps)
        per_head = mixer.qk_nope_head_dim + mixer.v_head_dim
        self.wkv_b = nn.Linear(mixer.kv_lora_rank, heads * per_head, bias=False)
        self.wo = nn.Linear(heads * mixer.v_head_dim, dim, bias=False)
        self.indexer = Indexer(section) if mixer.has_indexer else None

    def forward(
        self,
        x: Tensor,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        *seen: Tensor,
        lent: Any = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]; `cache` has the earlier tokens.

        lent: takes the mask of the chosen keys for later layers. chosen: that of an earlier layer.
        """
        seen = seen if chosen is None else (chosen,)
        section = self.section
        made_of = self.q_norm(self.wq_a(x)) if section.q_lora_rank else x
        q = self.wq_b(made_of) if section.q_lora_rank else self.wq(x)
        q = q.unflatten(-1, (-1, section.qk_head_dim))
        latent, k_shared = self.wkv_a(x).split((section.kv_lora_rank, section.qk_rope_head_dim), -1)
        latent = self.kv_norm(latent)
        if rotation is not None:
            unrotated, rotated = q.split((section.qk_nope_head_dim, section.qk_rope_head_dim), -1)
            q = torch.cat((unrotated, rotate(rotated, rotation, adjacent=self.adjacent)), -1)
            k_shared = rotate(k_shared.unsqueeze(2), rotation, adjacent=self.adjacent)[:, :, 0]
        q = q.transpose(1, 2)
        if self.indexer is not None:
            index = self.indexer(x, made_of, rotation)
            made = q, latent, k_shared
            heads = self.among_chosen(self.indexer, index, *made, cache, *seen, lent=lent)
        elif cache is None:
            heads = self.attend(q, *self.keys_and_values(latent, k_shared), *seen)
        else:
            held = cache.append(*self.cached(latent, k_shared))
            heads = self.attend_to_cached(q, held, *seen)
        return self.wo(heads.transpose(1, 2).flatten(2))

    def cached(self, latent: Tensor, k_shared: Tensor) -> tuple[Tensor, ...]:
        """The tensors of tokens kept in a cache."""
        if self.section.mla_naive_kvcache:
            return self.keys_and_values(latent, k_shared)
        return (torch.cat((latent, k_shared), -1),)

    def attend_to_cached(
        self, q: Tensor, held: tuple[Tensor, ...], seen: Tensor | None = None
    ) -> Tensor:
        """Attend over the tensors of a cache; arguments as in `attend`."""
        section = self.section
        if section.mla_naive_kvcache:
            k, v = held
            return self.attend(q, k, v, seen)
        if q.shape[2] == 1:
            return self.absorbed(q, held[0], seen)
        widths = section.kv_lora_rank, section.qk_rope_head_dim
        return self.attend(q, *self.keys_and_values(*held[0].split(widths, -1)), seen)

    def among_chosen(
        self,
        indexer: Indexer,
        index: Index,
        q: Tensor,
        latent: Tensor,
        k_shared: Tensor,
        cache: LayerCache | None,
        seen: Tensor | None = None,
        *,
        lent: Any = None,
    ) -> Tensor:
        """Attend over the keys that the indexer chooses, and teach the indexer."""
        held: list[Tensor] = []
        if cache is not None:
            *held, keys = cache.append(*self.cached(latent, k_shared), index.keys)
            index = index._replace(keys=keys)
        if self.section.indexer_sparse_training:
            seen = indexer.choose(index, seen, q.dtype)
        if lent is not None:
            lent.take(**({"chosen": seen} if self.section.chooses else {}))
        if cache is not None:
            return self.attend_to_cached(q, tuple(held), seen)
        k, v = self.keys_and_values(latent, k_shared)
        heads = self.attend(q, k, v, *(() if seen is None else (seen,)))
        if not (self.section.learns_to_choose and index.keys.requires_grad):
            return heads
        return indexer.learn(heads, index, seen, Target(q.detach(), k.detach(), self.scale))

    def choose_kernel(self, capability: tuple[int, int]) -> None:
        """Take the fastest kernel on a GPU of this compute capability."""
        self.backend = on_device(self.backend, capability)

    def keys_and_values(self, latent: Tensor, k_shared: Tensor) -> tuple[Tensor, Tensor]:
        """Make keys [batch, heads, seq, qk_head_dim] and values [batch, heads, seq, v_head_dim] of
        latent: [batch, seq, kv_lora_rank] and k_shared: [batch, seq, qk_rope_head_dim].
        """
        section = self.section
        widths = section.qk_nope_head_dim, section.v_head_dim
        projected = self.wkv_b(latent).unflatten(-1, (-1, sum(widths))).transpose(1, 2)
        k_own, v = projected.split(widths, -1)
        k_shared = k_shared.unsqueeze(1).expand(-1, k_own.shape[1], -1, -1)
        return torch.cat((k_own, k_shared), -1), v

    def of_heads(self) -> list[tuple[nn.Linear, list[float]]]:
        """Layers scaled by QK-Clip, with the power for each output of a head (arXiv:2507.20534,
        section 2.1): the shared key stays, and the queries of the shared key take the whole factor.
        """
        mixer, queries = self.section, self.wq_b if self.section.q_lora_rank else self.wq
        of_queries = [0.5] * mixer.qk_nope_head_dim + [1.0] * mixer.qk_rope_head_dim
        return [
            (queries, of_queries),
            (self.wkv_b, [0.5] * mixer.qk_nope_head_dim + [0.0] * mixer.v_head_dim),
        ]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
        """q: [batch, heads, seq, qk_head_dim] over k: [batch, heads, keys, qk_head_dim] and v:
        [batch, heads, keys, v_head_dim] -> [batch, heads, seq, v_head_dim].

        With more keys than queries the queries are of the last tokens. seen: as of
        `causal_attention`.
        """
        options = {"scale": self.scale, "cap": self.cap, "seen": seen}
        span = {"window": self.window, "chunk": self.chunk}
        return causal_attention(q, k, v, self.backend, **span, **options)

    def absorbed(self, q: Tensor, held: Tensor, seen: Tensor | None = None) -> Tensor:
        """Attend with a single query, [batch, heads, 1, qk_head_dim], over latents followed by the
        shared keys, [batch, seq, kv_lora_rank + qk_rope_head_dim] -> [batch, heads, 1, v_head_dim].

        wkv_b is multiplied with the query and with the sum of latents, not with every latent.
        """
        section = self.section
        widths = section.qk_nope_head_dim, section.v_head_dim
        to_keys, to_values = weight_of(self.wkv_b).unflatten(0, (-1, sum(widths))).split(widths, 1)
        parts = section.qk_nope_head_dim, section.qk_rope_head_dim
        q_own, q_shared = q.transpose(1, 2).split(parts, -1)
        q = torch.cat((torch.einsum("bshn,hnr->bshr", q_own, to_keys), q_shared), -1)
        # All heads read the same latents: keys of one head, [batch, 1, seq, width].
        k = held[:, None]
        if self.chunk and seen is None:
            k = k[:, :, (held.shape[1] - 1) // self.chunk * self.chunk :]
        v = k[..., : section.kv_lora_rank]
        if self.cap or q.device.type in WRITTEN_OUT:  # heads are in the dimension of queries
            summed = written_out(q, k, v, scale=self.scale, cap=self.cap, seen=seen)
        else:
            mask = None if seen is None else seen.to(q.dtype)
            summed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        return torch.einsum("bshr,hvr->bhsv", summed, to_values)
