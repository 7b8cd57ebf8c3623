"""Rotary positions, stretched and not, against those of transformers."""

from __future__ import annotations

import pytest
import torch
from test_transformers_parity import assert_equal_models, llama_tensors, peer_shape, shape
from transformers import DeepseekV3Config, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from forge.config.model import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.rope import RotaryTable, frequencies, rotary_scale, softmax_scale

YARN, LLAMA = {"rope_type": "yarn"}, {"rope_type": "llama3.1", "beta_fast": 4}
STRETCHED = {
    "deepseek": {**YARN, "mscale": 0.707},
    "kimi": {**YARN, "rope_theta": 5e4, "rope_factor": 32, "beta_fast": 1},
    "gpt-oss": {**YARN, "rope_theta": 15e4, "rope_factor": 32, "rope_truncate": False},
    "llama 3.1": {**LLAMA, "rope_theta": 5e5, "rope_factor": 8},
}
THEIRS = {
    "rope_theta": "rope_theta",
    "rope_factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "rope_truncate": "truncate",
}


def parameters(section: DecoderConfig, **given: float) -> dict:
    """The same as transformers' rope_parameters."""
    found = {theirs: getattr(section, ours) for ours, theirs in THEIRS.items()}
    llama = section.rope_type == "llama3.1"
    names = ("high_freq_factor", "low_freq_factor") if llama else ("beta_fast", "beta_slow")
    betas = dict(zip(names, (section.beta_fast, section.beta_slow), strict=True))
    return found | betas | {"rope_type": section.rope_type.removesuffix(".1")} | given


@pytest.mark.parametrize("name", STRETCHED)
@pytest.mark.parametrize("width", [64, 128])
def test_frequencies_are_those_of_transformers(name, width) -> None:
    section = DecoderConfig(dim=2 * width, n_heads=2, **STRETCHED[name])
    rope = parameters(section)
    config = LlamaConfig(hidden_size=2 * width, num_attention_heads=2, rope_parameters=rope)
    expected, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    exact = name != "llama 3.1"
    torch.testing.assert_close(frequencies(section), expected, rtol=0 if exact else 2e-7, atol=0)
    assert (expected != frequencies(DecoderConfig(dim=2 * width, n_heads=2))).sum() > 10
    if name != "deepseek":
        section.rope_attention_scaling = True
        assert rotary_scale(section) == pytest.approx(scale, rel=1e-15)


@pytest.mark.parametrize("name", ["deepseek", "kimi"])
def test_the_softmax_is_scaled_as_that_of_deepseek(name) -> None:
    section = DecoderConfig(**STRETCHED[name])
    both = {"mscale": section.mscale, "mscale_all_dim": section.mscale}
    config = DeepseekV3Config(hidden_size=64, rope_parameters=parameters(section, **both))
    assert ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[1] == rotary_scale(section) == 1.0
    with torch.device("meta"):
        peer = DeepseekV3Attention(config, 0)
    assert softmax_scale(section, 128 + 64) == pytest.approx(peer.scaling, rel=1e-15)


@pytest.mark.parametrize(
    "options", [YARN, {**YARN, "rope_attention_scaling": True}, LLAMA], ids=lambda o: ",".join(o)
)
def test_a_stretched_llama(options) -> None:
    """YaRN may scale what is rotated, or the softmax: they are equal where whole heads rotate."""
    options = {"rope_factor": 4, "original_max_position_embeddings": 12, "beta_slow": 0.2} | options
    section = DecoderConfig(**shape(n_kv_heads=2, **options))
    peer = LlamaForCausalLM(LlamaConfig(**peer_shape(rope_parameters=parameters(section))))
    assert_equal_models(Decoder(section), peer, llama_tensors)


@pytest.mark.parametrize("options", [{}, YARN], ids=["default", "yarn"])
def test_tables_at_far_positions(options) -> None:
    """Llama-3's base and 8,192 positions: to the bit."""
    section = DecoderConfig(dim=256, n_heads=2, max_seq_len=8192, rope_theta=5e5, **options)
    section.rope_attention_scaling = section.rope_type == "yarn"
    rope = parameters(section)
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(8192)[None])
    ours = RotaryTable(section)
    assert torch.equal(ours.cos[:, 0], cos[0])
    assert torch.equal(ours.sin[:, 0, 64:], sin[0, :, 64:])
    assert torch.equal(ours.sin[:, 0, :64], -sin[0, :, :64])
