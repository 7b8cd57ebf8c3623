"""Reading a text in pieces through a cache gives the logits of reading it whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge.config.model.mixers.gated_delta_net import GatedDeltaNet
from forge.config.model.mixers.mla import MLA

WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}
DELTA = {"gdn_num_key_heads": 2, "gdn_num_value_heads": 4, "gdn_key_head_dim": 6}
DELTA |= {"gdn_value_head_dim": 10, "gdn_chunk_size": 5}
MAMBA = {"ssm_num_heads": 4, "ssm_head_dim": 6, "ssm_state_size": 10, "ssm_chunk_size": 5}
INDEXER: Any = {"use_indexer": True, "indexer_sparse_training": True, "indexer_topk": 3}
INDEXER |= {"indexer_head_dim": 12, "indexer_n_heads": 5}
SHAPES = {
    "mha rope": {},
    "gqa rope": {"n_kv_heads": 2},
    "mqa qk-norm": {"n_kv_heads": 1, "qk_norm": True},
    "gqa learned": {"n_kv_heads": 2, "position": "learned", "norm_type": "layernorm", "bias": True},
    "gqa math": {"n_kv_heads": 2, "sdpa_backend": "math"},
    "gqa flash": {"n_kv_heads": 2, "sdpa_backend": "flash"},
    "sinusoids": {"position": "sinusoidal"},
    "adjacent pairs": {"rope_interleave": True, "partial_rotary_factor": 0.5},
    "chunks": {"chunk_attn_window_size": 4, "n_kv_heads": 2},
    "chunks, capped": {"chunk_attn_window_size": 5, "attn_logits_soft_cap": 1.5},
    "sinks": {"attention_sink": True, "n_kv_heads": 2, "sliding_window_size": 3},
    "sinks and caps": {"attention_sink": True, "attn_logits_soft_cap": 2.0},
    "temperatures": {
        "position": "none",
        "temperature_tuning": True,
        "temperature_tuning_scale": 0.5,
        "temperature_tuning_floor": 3,
    },
    "all heads at once": {"qk_norm": True, "qk_norm_width": "all", "n_kv_heads": 2},
    "norms without weights, gates": {
        "qk_norm": True,
        "qk_norm_with_scale": False,
        "qk_norm_after_rope": True,
        "v_norm": True,
        "attention_output_gate": True,
        "share_kv_projections": True,
        "query_scale": 0.5,
    },
    "mla": {"mixer": MLA(**WIDTHS)},
    "mla latents": {"mixer": MLA(**WIDTHS, mla_naive_kvcache=False)},
    "mla latents window": {
        "mixer": MLA(**WIDTHS, q_lora_rank=12, mla_naive_kvcache=False),
        "sliding_window_size": 4,
    },
    "mla latents chunks": {
        "mixer": MLA(**WIDTHS, mla_naive_kvcache=False),
        "chunk_attn_window_size": 5,
        "attn_logits_soft_cap": 2.0,
    },
    "delta nets": {
        "kinds": {"delta": {"mixer": {"schema": "gated_delta_net", **DELTA}}},
        "layers": ["delta", "default"],
    },
    "indexer, latents": {
        "mixer": MLA(q_lora_rank=12, mla_naive_kvcache=False, **WIDTHS, **INDEXER),
    },
    "indexer, keys": {"mixer": MLA(q_lora_rank=12, **WIDTHS, **INDEXER)},
    "one branch a block": {
        "kinds": {
            "mamba": {"mixer": {"schema": "mamba2", **MAMBA}, "feed_forward": {"schema": "none"}},
            "conv": {"mixer": {"schema": "short_conv"}, "feed_forward": {"schema": "none"}},
            "mlp": {"mixer": {"schema": "none"}},
        },
        "layers": ["mlp", "mamba", "conv", "default"],
        "n_layers": 4,
    },
    "delta nets alone": {"mixer": GatedDeltaNet(**DELTA)},
}


@pytest.mark.parametrize(
    "pieces",
    [[1] * 24, [10, *[1] * 14], [5, 7, 1, 1, 6, 4], [24]],
    ids=["a token at a time", "prefill", "chunks", "whole"],
)
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
@torch.no_grad()
def test_cached_logits_are_the_uncached_ones(small_decoder, options, pieces) -> None:
    model = small_decoder(**options)
    tokens = torch.randint(61, (3, 24), generator=torch.Generator().manual_seed(0))
    cache, start = model.new_cache(), 0
    for piece in pieces:
        logits = model(tokens[:, start : start + piece], cache=cache)
        start += piece
        assert cache.length == start
        whole = model(tokens[:, :start])[:, -piece:]
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-5)


def test_a_cache_holds_key_value_heads_only(small_decoder) -> None:
    cache = small_decoder(n_kv_heads=2).new_cache(9)
    keys, values = cache.layers[0].append(torch.zeros(3, 2, 4, 8), torch.zeros(3, 2, 4, 8))
    assert keys.shape == values.shape == (3, 2, 4, 8)
    assert keys.untyped_storage().nbytes() == 4 * 3 * 2 * 9 * 8


@torch.no_grad()
def test_latents_are_decoded_as_the_keys_and_values_made_of_them(small_decoder) -> None:
    """In fp64. A token's latent is narrower than the keys and values of its heads."""
    found, widths = [], []
    tokens = torch.arange(24)[None]
    for naive in (True, False):
        mixer = MLA(**WIDTHS, q_lora_rank=12, mla_naive_kvcache=naive)
        model = small_decoder(mixer=mixer, init_std=0.3).double()
        cache = model.new_cache()
        model(tokens[:, :9], cache=cache)
        rest = [model(tokens[:, i : i + 1], cache=cache) for i in range(9, 24)]
        found.append(torch.cat(rest, 1))
        widths.append(sum(each.numel() for each in cache.layers[0].held) // 24)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)
    assert found[0].std() > 0.3
    assert widths == [4 * (18 + 6), 20 + 8]


@torch.no_grad()
def test_too_many_tokens_are_refused(small_decoder) -> None:
    model = small_decoder()
    with pytest.raises(ValueError, match=r"model\.max_seq_len=24: 25 tokens"):
        model(torch.zeros(1, 25, dtype=torch.int64))
    cache = model.new_cache()
    model(torch.zeros(1, 20, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match=r"model\.max_seq_len=24: 25 tokens"):
        model(torch.zeros(1, 5, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="11 tokens in a cache for 10"):
        model(torch.zeros(1, 11, dtype=torch.int64), cache=model.new_cache(10))
    with pytest.raises(ValueError, match=r"model\.max_seq_len=24: a cache of 25"):
        model.new_cache(25)
