"""What families of models do differently in a layer, against transformers' own models."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from test_transformers_parity import assert_equal_models, peer_shape, shape
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.sdpa import causal_attention

LINEAR = {f"self_attn.{each}_proj": f"attention.w{each}" for each in "qkvo"}
LINEAR |= {f"mlp.{each}_proj": f"feed_forward.w_{each}" for each in ("gate", "up", "down")}
PRE = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
POST = {
    "post_attention_layernorm": "attention_post_norm",
    "post_feedforward_layernorm": "feed_forward_post_norm",
}
BOTH = {
    "input_layernorm": "attention_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    **POST,
}
NO_PADDING = {"pad_token_id": None, "eos_token_id": None}
QK_NORMS = {f"self_attn.{each}_norm": f"attention.{each}_norm" for each in "qk"}


def named(names: dict[str, str]):
    """The peer's tensors under our names."""

    def tensors(peer: nn.Module, pick) -> dict[str, Tensor]:
        found = {"embedding.weight": pick(peer.model.embed_tokens.weight)}
        found["norm.weight"] = pick(peer.model.norm.weight)
        for i, layer in enumerate(peer.model.layers):
            for theirs, ours in names.items():
                for kind, parameter in layer.get_submodule(theirs).named_parameters():
                    found[f"blocks.{i}.{ours}.{kind}"] = pick(parameter)
        if not peer.config.tie_word_embeddings:
            found["output.weight"] = pick(peer.lm_head.weight)
        return found

    return tensors


def test_gemma3_has_kinds_of_layers_norms_on_both_sides_and_a_unit_offset() -> None:
    """Two local layers, one global: window and rotary base differ; heads are wider than dim / 4."""
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
    options = {"head_dim": 12, "sliding_window": 16, "tie_word_embeddings": True, **NO_PADDING}
    options |= {"query_pre_attn_scalar": 12, "rope_parameters": rope}
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    peer = Gemma3ForCausalLM(Gemma3TextConfig(**peer_shape(**options, layer_types=types)))
    local = {"sliding_window_size": 16, "rope_theta": 100.0}
    section = shape(
        n_kv_heads=2,
        head_dim=12,
        tie_embeddings=True,
        qk_norm=True,
        norm_placement="both",
        norm_unit_offset=True,
        activation="gelu_tanh",
        gated_mlp=True,
        embedding_multiplier=math.sqrt(32),
        rope_theta=5000.0,
        kinds={"local": local},
        layers=["local", "local", "default"],
    )
    ours = Decoder(DecoderConfig(**section))
    # weights drawn near 1 are scales near 2, so values are large
    assert_equal_models(ours, peer, named(LINEAR | BOTH | QK_NORMS), tolerance=3e-5)


def test_granite_multiplies_embeddings_and_what_layers_add() -> None:
    options = {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 1.0}
    config = GraniteConfig(**peer_shape(**options, attention_multiplier=8**-0.5))
    section = shape(n_kv_heads=2, embedding_multiplier=3.0, residual_multiplier=0.3)
    ours = Decoder(DecoderConfig(**section))
    assert_equal_models(ours, GraniteForCausalLM(config), named(LINEAR | PRE))


def test_qwen2_has_biases_of_queries_keys_and_values_alone() -> None:
    peer = Qwen2ForCausalLM(Qwen2Config(**peer_shape()))
    section = shape(n_kv_heads=2, q_bias=True, k_bias=True, v_bias=True)
    assert_equal_models(Decoder(DecoderConfig(**section)), peer, named(LINEAR | PRE))


def test_olmo2_normalises_what_layers_give() -> None:
    """But for its QK-norm, which is over all heads at once."""
    peer = Olmo2ForCausalLM(Olmo2Config(**peer_shape(**NO_PADDING)))
    for layer in peer.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()
    ours = Decoder(DecoderConfig(**shape(n_kv_heads=2, norm_placement="post")))
    assert_equal_models(ours, peer, named(LINEAR | POST))


@pytest.mark.parametrize(("kv_heads", "width"), [(4, 8), (2, 8), (2, 5)])
@pytest.mark.parametrize(("seq", "past"), [(12, 0), (10, 0), (1, 11), (5, 6), (3, 1)])
@pytest.mark.parametrize("window", [4, 0])
def test_what_is_seen_is_that_of_a_mask(
    window: int, seq: int, past: int, kv_heads: int, width: int
) -> None:
    """width: of values, where that of keys is 8."""
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64, "requires_grad": True}
    q = torch.randn(2, 4, seq, 8, **draw)
    k, v = (torch.randn(2, kv_heads, past + seq, each, **draw) for each in (8, width))
    distance = torch.arange(past, past + seq)[:, None] - torch.arange(past + seq)
    seen = (distance >= 0) & (distance < (window or 99))
    keys, values = (x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))
    scores = (q @ keys.transpose(2, 3) / math.sqrt(8)).masked_fill(~seen, -math.inf)
    expected = scores.softmax(-1) @ values
    found = causal_attention(q, k, v, "auto", window=window)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad((found * weight).sum(), (q, k, v)),
        torch.autograd.grad((expected * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


def test_layers_without_positions_see_tokens_in_any_order() -> None:
    """Of one layer, the last token's logits do not change where those before it are exchanged."""
    section = DecoderConfig(**shape(n_layers=1, position="none"))
    model = Decoder(section)
    init_weights(model, 0)
    tokens = torch.arange(1, 13)[None]
    other = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), 1)
    torch.testing.assert_close(model(tokens)[:, -1], model(other)[:, -1])
    assert not torch.allclose(F.softmax(model(tokens)[:, 3], -1), F.softmax(model(other)[:, 3], -1))
