"""Rotary positions, stretched and not, against those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_transformers_parity import assert_equal_models, llama_tensors, peer_shape, shape
from torch import Tensor
from transformers import DeepseekV3Config, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRotaryEmbedding

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.positions import Sinusoids
from forge.models.rope import RotaryTable, frequencies, rotate, softmax_scale

YARN, LLAMA = {"rope_type": "yarn"}, {"rope_type": "llama3.1", "beta_fast": 4}
LONG = {"rope_type": "longrope"}
PAIRS = [1 + 0.25 * pair for pair in range(16)]
STRETCHED = {
    "deepseek": {**YARN, "mscale": 0.707},
    "kimi": {**YARN, "rope_theta": 5e4, "rope_factor": 32, "beta_fast": 1},
    "gpt-oss": {**YARN, "rope_theta": 15e4, "rope_factor": 32, "rope_truncate": False},
    "two mscales": {**YARN, "mscale": 0.9, "mscale_all_dim": 0.5},
    "a factor": {**YARN, "rope_attention_factor": 1.3},
    "llama 3.1": {**LLAMA, "rope_theta": 5e5, "rope_factor": 8},
    "gemma 3": {"rope_type": "linear", "rope_theta": 1e6, "rope_factor": 8},
    "dynamic": {"rope_type": "dynamic", "rope_factor": 3, "max_seq_len": 9000},
    "dynamic, not longer": {"rope_type": "dynamic", "max_seq_len": 4000},
    "gemma 4": {"rope_type": "proportional", "partial_rotary_factor": 0.3, "rope_factor": 2},
    "phi 3, long": {**LONG, "max_seq_len": 5000, "rope_factor": 32},
    "phi 3, short": {**LONG, "max_seq_len": 4096, "rope_attention_factor": 1.2},
    "qwen3-next": {"rope_theta": 1e7},
}
THEIRS = {
    "rope_theta": "rope_theta",
    "rope_factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "rope_truncate": "truncate",
    "partial_rotary_factor": "partial_rotary_factor",
    "rope_attention_factor": "attention_factor",
    "rope_short_factor": "short_factor",
    "rope_long_factor": "long_factor",
}


def parameters(section: DecoderConfig, **given: float) -> dict:
    """The same as transformers' rope_parameters."""
    found = {theirs: getattr(section, ours) for ours, theirs in THEIRS.items()}
    llama = section.rope_type == "llama3.1"
    names = ("high_freq_factor", "low_freq_factor") if llama else ("beta_fast", "beta_slow")
    betas = dict(zip(names, (section.beta_fast, section.beta_slow), strict=True))
    if section.mscale_all_dim is not None:
        betas |= {"mscale": section.mscale, "mscale_all_dim": section.mscale_all_dim}
    return found | betas | {"rope_type": section.rope_type.removesuffix(".1")} | given


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("name", STRETCHED)
def test_frequencies_are_those_of_transformers(name, part) -> None:
    """Of heads of 64, or of half of 128."""
    width = int(64 / part)
    given = {"partial_rotary_factor": part} | STRETCHED[name]
    if given.get("rope_type") == "longrope":
        factors = {"rope_short_factor": PAIRS * 2, "rope_long_factor": [2 * p for p in PAIRS * 2]}
        given |= factors
    section = DecoderConfig(dim=2 * width, n_heads=2, **given)
    rope = parameters(section)
    config = LlamaConfig(hidden_size=2 * width, num_attention_heads=2, rope_parameters=rope)
    config.max_position_embeddings = section.original_max_position_embeddings
    compute = ROPE_INIT_FUNCTIONS.get(rope["rope_type"], plain)
    expected, scale = compute(config, "cpu", seq_len=section.max_seq_len)
    # the periods are blended in another order, and longer bases are rounded once more
    exact = name not in ("llama 3.1", "dynamic")
    torch.testing.assert_close(frequencies(section), expected, rtol=0 if exact else 3e-7, atol=0)
    stays = name in ("qwen3-next", "dynamic, not longer")
    default = DecoderConfig(dim=2 * width, n_heads=2, partial_rotary_factor=part)
    default.rope_theta = section.rope_theta
    if name != "gemma 4":
        assert ((expected != frequencies(default)).sum() > 10) is not stays
    if name != "deepseek":
        section.rope_attention_scaling = True
        assert section.rotary_scale == pytest.approx(scale, rel=1e-15)


def plain(config: Any, device: str, seq_len: int) -> tuple[Tensor, float]:
    """Frequencies of transformers' models that stretch nothing."""
    return Qwen3NextRotaryEmbedding.compute_default_rope_parameters(config, device)


@pytest.mark.parametrize("name", ["deepseek", "kimi"])
def test_the_softmax_is_scaled_as_that_of_deepseek(name) -> None:
    section = DecoderConfig(**STRETCHED[name])
    both = {"mscale": section.mscale, "mscale_all_dim": section.mscale}
    config = DeepseekV3Config(hidden_size=64, rope_parameters=parameters(section, **both))
    assert ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[1] == section.rotary_scale == 1.0
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


@pytest.mark.parametrize("part", [1.0, 0.5])
def test_adjacent_pairs_are_complex_numbers(part) -> None:
    """As in Llama 4, whose pairs (2i, 2i + 1) are turned by a multiplication."""
    section = DecoderConfig(dim=16, n_heads=1, rope_interleave=True, partial_rotary_factor=part)
    x = torch.randn(2, 5, 3, 16, dtype=torch.float64)
    turned, kept = x.split((int(16 * part), int(16 * (1 - part))), -1)
    angles = torch.arange(7, 12)[:, None] * frequencies(section).double()
    pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))
    pairs = pairs * torch.polar(torch.ones(()).double(), angles)[:, None]
    expected = torch.cat((torch.view_as_real(pairs).flatten(-2), kept), -1)
    found = rotate(x, RotaryTable(section)(7, 5), adjacent=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_sinusoids_are_those_of_m2m100() -> None:
    """Which has them as tensor2tensor had."""
    peer = M2M100SinusoidalPositionalEmbedding.get_embedding(40, 12, padding_idx=None)
    torch.testing.assert_close(Sinusoids(40, 12).table, peer, rtol=1e-6, atol=1e-6)
    options = {"position": "sinusoidal", "max_seq_len": 40}
    model = Decoder(DecoderConfig(dim=12, n_layers=1, n_heads=2, vocab_size=9, **options))
    tokens = torch.tensor([[3, 3, 4]])
    added = model.embed(tokens, 5) - model.embedding(tokens)
    torch.testing.assert_close(added, peer[None, 5:8], rtol=1e-5, atol=1e-5)
