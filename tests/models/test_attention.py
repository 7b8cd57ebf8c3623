"""What families of models do differently in attention, against transformers' own models and layers,
longer than windows and chunks are: values and gradients, on random fp32 weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_layers import BOTH, LINEAR, NO_PADDING, POST, QK_NORMS, named
from test_transformers_parity import SEQ, assert_equal_models, peer_shape, randomise, shape
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    Qwen3NextConfig,
)
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4TextAttention,
    Gemma4TextRotaryEmbedding,
)
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.llama4.modeling_llama4 import (
    Llama4TextAttention,
    Llama4TextRotaryEmbedding,
)
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextAttention,
    Qwen3NextRotaryEmbedding,
)

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.attention import Attention
from forge.models.decoder import Decoder
from forge.models.rope import tables_of

LOCAL_FIRST = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOW = 13
KINDS: dict[str, Any] = {"layers": ["local", "default"], "n_kv_heads": 2, "head_dim": 12}


def test_gemma2_has_caps_of_scores_and_logits_and_a_scale_of_queries() -> None:
    options = {"head_dim": 12, "sliding_window": WINDOW, "tie_word_embeddings": True, **NO_PADDING}
    options |= {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 1.5}
    options |= {"final_logit_softcapping": 4.0, "layer_types": LOCAL_FIRST}
    peer = Gemma2ForCausalLM(Gemma2Config(**peer_shape(**options)))
    section = shape(
        **KINDS,
        kinds={"local": {"sliding_window_size": WINDOW}},
        tie_embeddings=True,
        norm_placement="both",
        norm_unit_offset=True,
        activation="gelu_tanh",
        gated_mlp=True,
        embedding_multiplier=math.sqrt(32),
        query_scale=20**-0.5,
        attn_logits_soft_cap=1.5,
        final_logits_soft_cap=4.0,
    )
    # weights drawn near 1 are scales near 2, so values are large
    assert_equal_models(Decoder(DecoderConfig(**section)), peer, named(LINEAR | BOTH), 3e-5)


def test_gemma3_divides_positions_of_global_layers() -> None:
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
    }
    options = {"head_dim": 12, "sliding_window": WINDOW, "tie_word_embeddings": True, **NO_PADDING}
    options |= {"query_pre_attn_scalar": 7, "rope_parameters": rope, "layer_types": LOCAL_FIRST}
    peer = Gemma3ForCausalLM(Gemma3TextConfig(**peer_shape(**options)))
    local = {"sliding_window_size": WINDOW, "rope_theta": 100.0, "rope_type": "default"}
    section = shape(
        **KINDS,
        kinds={"local": local},
        tie_embeddings=True,
        qk_norm=True,
        norm_placement="both",
        norm_unit_offset=True,
        activation="gelu_tanh",
        gated_mlp=True,
        embedding_multiplier=math.sqrt(32),
        query_scale=7**-0.5,
        rope_theta=5000.0,
        rope_type="linear",
        rope_factor=8.0,
    )
    ours = Decoder(DecoderConfig(**section))
    assert_equal_models(ours, peer, named(LINEAR | BOTH | QK_NORMS), 3e-5)


@pytest.mark.parametrize("family", ["olmo2", "olmo3"])
def test_olmo_normalises_all_heads_at_once(family) -> None:
    """OLMo 3 has windows, and stretches positions of its global layers alone."""
    own = {"qk_norm": True, "qk_norm_width": "all", "norm_placement": "post", "n_kv_heads": 2}
    if family == "olmo2":
        peer = Olmo2ForCausalLM(Olmo2Config(**peer_shape(**NO_PADDING)))
    else:
        yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0}
        yarn |= {"original_max_position_embeddings": 12, "beta_fast": 32.0, "beta_slow": 0.2}
        rope = {"sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
        options = {"sliding_window": WINDOW, "layer_types": LOCAL_FIRST, **NO_PADDING}
        options |= {"rope_parameters": rope | {"full_attention": yarn}}
        peer = Olmo3ForCausalLM(Olmo3Config(**peer_shape(**options)))
        own |= {"kinds": {"local": {"sliding_window_size": WINDOW, "rope_type": "default"}}}
        own |= {"layers": ["local", "default"], "rope_theta": 500.0, "rope_type": "yarn"}
        own |= {"rope_factor": 4.0, "original_max_position_embeddings": 12, "beta_slow": 0.2}
        own |= {"rope_attention_scaling": True}
    ours = Decoder(DecoderConfig(**shape(**own)))
    assert_equal_models(ours, peer, named(LINEAR | POST | QK_NORMS))


def mask(window: int = 0, chunk: int = 0) -> Tensor:
    place = torch.arange(SEQ)
    behind = place[:, None] - place
    seen = (behind >= 0) & (behind < (window or SEQ))
    seen &= (place[:, None] // chunk == place // chunk) if chunk else True
    return torch.zeros(1, 1, SEQ, SEQ).masked_fill(~seen, -math.inf)


def assert_equal_layers(
    section: DecoderConfig, peer: nn.Module, embeddings: Any, seen: Tensor, **more: Any
) -> Attention:
    """Of attention alone, whose weights have our names but for the letter in front."""
    randomise(peer)
    generator = torch.Generator().manual_seed(1)
    ours, x = Attention(section), torch.randn(2, SEQ, 32, generator=generator)
    names = {f"{each}_proj": f"w{each}" for each in "qkvo"}
    theirs = {}
    for name, parameter in peer.named_parameters():
        module, _, rest = name.rpartition(".")
        theirs[f"{names.get(module, module)}.{rest}".lstrip(".")] = parameter
    ours.load_state_dict({name: values.detach() for name, values in theirs.items()})
    found, inputs = [], [x.clone().requires_grad_() for _ in range(2)]
    table = tables_of({"default": section})
    rotation = table["default"](0, SEQ) if table else None  # type: ignore[operator]
    found.append(ours(inputs[0], rotation))
    given = {"position_embeddings": embeddings, "attention_mask": seen, **more}
    found.append(peer(inputs[1], **given)[0])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
    weight = torch.randn(found[0].shape, generator=generator)
    for output in found:
        (output * weight).sum().backward()
    gradients = {name: values.grad for name, values in theirs.items()}
    gradients["x"] = inputs[1].grad
    for name, own in {**dict(ours.named_parameters()), "x": inputs[0]}.items():
        expected = gradients[name]
        assert expected.norm() > 1e-3 or name == "wk.bias", name
        assert (own.grad - expected).norm() <= 1e-5 * expected.norm() + 1e-5, name
    return ours


SIZES: dict[str, Any] = {"n_kv_heads": 2, "n_heads": 4, "dim": 32, "max_seq_len": SEQ}
PEER: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
PEER |= {"num_hidden_layers": 4, "attn_implementation": "eager", "max_position_embeddings": SEQ}
PLACES = torch.arange(SEQ)[None]


@pytest.mark.parametrize("window", [0, 12, WINDOW])
def test_gpt_oss_has_sinks(window) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 15e4, "factor": 4.0, "truncate": False}
    rope |= {"original_max_position_embeddings": 12, "beta_fast": 32.0, "beta_slow": 0.2}
    config = GptOssConfig(**PEER, attention_bias=True, rope_parameters=rope)
    section = DecoderConfig(
        **SIZES,
        head_dim=16,
        bias=True,
        attention_sink=True,
        sliding_window_size=window,
        rope_theta=15e4,
        rope_type="yarn",
        rope_factor=4.0,
        rope_truncate=False,
        rope_attention_scaling=True,
        original_max_position_embeddings=12,
        beta_slow=0.2,
    )
    embeddings = GptOssRotaryEmbedding(config)(torch.zeros(1), PLACES)
    peer = GptOssAttention(config, 0)
    ours = assert_equal_layers(section, peer, embeddings, mask(window))
    assert ours.sinks is not None
    assert ours.sinks.abs().max() > 0.1


@pytest.mark.parametrize("rotated", [True, False])
def test_llama4_has_chunks_and_temperatures(rotated) -> None:
    """Adjacent pairs, norms without weights after the rotation, chunks of 13 of 48 tokens; or no
    rotation, and temperatures that rise every 5 tokens.
    """
    rope = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 12}
    options = {"no_rope_layers": [1, 0, 1, 0], "use_qk_norm": True, "attn_temperature_tuning": True}
    options |= {"attn_scale": 0.3, "floor_scale": 5, "rms_norm_eps": 1e-3}
    config = Llama4TextConfig(**PEER, **options, rope_parameters=rope)
    section = DecoderConfig(
        **SIZES,
        head_dim=16,
        position="rope" if rotated else "none",
        qk_norm=rotated,
        qk_norm_with_scale=False,
        qk_norm_after_rope=True,
        norm_eps=1e-3,
        chunk_attn_window_size=WINDOW if rotated else 0,
        temperature_tuning=True,
        temperature_tuning_scale=0.3,
        temperature_tuning_floor=5,
        rope_interleave=True,
        rope_theta=500.0,
        rope_type="llama3.1",
        rope_factor=8.0,
        beta_fast=4.0,
        original_max_position_embeddings=12,
    )
    embeddings = Llama4TextRotaryEmbedding(config)(torch.zeros(1), PLACES)
    peer = Llama4TextAttention(config, 0 if rotated else 1)
    assert_equal_layers(section, peer, embeddings, mask(chunk=WINDOW if rotated else 0))


def test_qwen3_next_has_gates_and_rotates_a_part() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = Qwen3NextConfig(**PEER, rope_parameters=rope)
    section = DecoderConfig(
        **SIZES,
        head_dim=16,
        partial_rotary_factor=0.25,
        qk_norm=True,
        norm_unit_offset=True,
        norm_eps=config.rms_norm_eps,
        attention_output_gate=True,
    )
    embeddings = Qwen3NextRotaryEmbedding(config)(torch.zeros(1), PLACES)
    assert_equal_layers(section, Qwen3NextAttention(config, 3), embeddings, mask())


def test_gemma4_makes_values_of_keys() -> None:
    """In its global layers; proportional rotation, norms of values without weights, no scale."""
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
    }
    options = {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "global_head_dim": 16}
    types = ["sliding_attention", "full_attention"] * 2
    options |= {"rope_parameters": rope, "layer_types": types, "num_kv_shared_layers": 0}
    config = Gemma4TextConfig(**PEER, **options)
    section = DecoderConfig(
        **SIZES,
        head_dim=16,
        rope_theta=1e6,
        rope_type="proportional",
        rope_factor=1.0,
        partial_rotary_factor=0.25,
        qk_norm=True,
        v_norm=True,
        v_norm_with_scale=False,
        share_kv_projections=True,
        query_scale=1.0,
        norm_eps=config.rms_norm_eps,
    )
    rotary = Gemma4TextRotaryEmbedding(config)
    embeddings = rotary(torch.zeros(1), PLACES, "full_attention")
    peer = Gemma4TextAttention(config, 1)
    assert_equal_layers(section, peer, embeddings, mask(), shared_kv_states={})
