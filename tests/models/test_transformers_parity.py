"""The decoder against transformers' own models: logits and gradients, on random fp32 weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.data.batches.noise import noise_of
from forge.models.decoder import Decoder

VOCAB, SEQ, DIM, LAYERS, HEADS, FFN = 97, 48, 32, 3, 4, 80
Pick = Callable[[nn.Parameter], Tensor]


def randomise(model: nn.Module) -> None:
    """Norms are near 1 but not 1, biases near 0 but not 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.15 * drawn + is_norm_weight)


def llama_tensors(peer: nn.Module, pick: Pick, *, qk_norm: bool = False) -> dict[str, Tensor]:
    """The peer's weights (or gradients) under our names."""
    names = {f"self_attn.{each}_proj": f"attention.w{each}" for each in "qkvo"}
    names |= {f"mlp.{each}_proj": f"feed_forward.w_{each}" for each in ("gate", "up", "down")}
    names |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}
    if qk_norm:
        names |= {f"self_attn.{each}_norm": f"attention.{each}_norm" for each in "qk"}
    tensors = {
        "embedding.weight": pick(peer.model.embed_tokens.weight),
        "norm.weight": pick(peer.model.norm.weight),
    }
    for i, layer in enumerate(peer.model.layers):
        for theirs, ours in names.items():
            if "mlp" not in theirs or not hasattr(layer.mlp, "experts"):
                weight = layer.get_parameter(f"{theirs}.weight")
                tensors[f"blocks.{i}.{ours}.weight"] = pick(weight)
    if not peer.config.tie_word_embeddings:
        tensors["output.weight"] = pick(peer.lm_head.weight)
    return tensors


def gpt2_tensors(peer: nn.Module, pick: Pick) -> dict[str, Tensor]:
    """The same for GPT-2, whose linear layers are transposed and whose q, k and v are one."""
    body = peer.transformer
    tensors = {"embedding.weight": pick(body.wte.weight), "positions.weight": pick(body.wpe.weight)}
    for i, layer in enumerate(body.h):
        for kind in ("weight", "bias"):
            fused = pick(getattr(layer.attn.c_attn, kind)).chunk(3, dim=-1)
            found = dict(zip(("attention.wq", "attention.wk", "attention.wv"), fused, strict=True))
            found["attention.wo"] = pick(getattr(layer.attn.c_proj, kind))
            found["feed_forward.w_up"] = pick(getattr(layer.mlp.c_fc, kind))
            found["feed_forward.w_down"] = pick(getattr(layer.mlp.c_proj, kind))
            found["attention_norm"] = pick(getattr(layer.ln_1, kind))
            found["feed_forward_norm"] = pick(getattr(layer.ln_2, kind))
            for name, tensor in found.items():
                whole = tensor.t() if tensor.dim() == 2 else tensor
                tensors[f"blocks.{i}.{name}.{kind}"] = whole
    return tensors | {f"norm.{kind}": pick(getattr(body.ln_f, kind)) for kind in ("weight", "bias")}


def moe_tensors(peer: nn.Module, pick: Pick, *, qk_norm: bool = False) -> dict[str, Tensor]:
    """The same with experts; the peer's gate and up projections are one."""
    tensors = llama_tensors(peer, pick, qk_norm=qk_norm)
    for i, layer in enumerate(peer.model.layers):
        if hasattr(layer.mlp, "experts"):
            gate, up = pick(layer.mlp.experts.gate_up_proj).chunk(2, dim=1)
            found = {"experts.w_gate": gate, "experts.w_up": up}
            found["experts.w_down"] = pick(layer.mlp.experts.down_proj)
            found["router.weight"] = pick(layer.mlp.gate.weight)
            found["router.selection_bias"] = torch.zeros(len(gate))
            tensors |= {f"blocks.{i}.feed_forward.{name}": tensor for name, tensor in found.items()}
    return tensors


def assert_equal_models(
    ours: Decoder,
    peer: nn.Module,
    tensors: Callable[[nn.Module, Pick], dict[str, Tensor]],
    tolerance: float = 1e-5,
) -> None:
    randomise(peer)
    weights = tensors(peer, lambda parameter: parameter.detach())
    ours.load_state_dict(weights, strict=True)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in peer.parameters())
    tokens = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(1))
    logits, expected = ours(tokens), peer(tokens).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    for output in (logits, expected):
        F.cross_entropy(output[:, :-1].reshape(-1, VOCAB), tokens[:, 1:].reshape(-1)).backward()
    gradients = tensors(peer, lambda parameter: parameter.grad)
    for name, parameter in ours.named_parameters():
        reference = gradients[name]
        # A key bias shifts every score of a query alike: its gradient is zero but for rounding.
        vanishes = name.endswith("wk.bias")
        scale = gradients[name.replace("wk", "wq") if vanishes else name].norm()
        assert scale > 1e-4, name
        assert (parameter.grad - reference).norm() <= tolerance * scale, name


def shape(**options: object) -> dict:
    sizes = {"dim": DIM, "n_layers": LAYERS, "n_heads": HEADS, "ffn_hidden_dim": FFN}
    return sizes | {"vocab_size": VOCAB, "max_seq_len": SEQ} | options


def peer_shape(**options: object) -> dict:
    sizes = {"hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"vocab_size": VOCAB, "intermediate_size": FFN, "max_position_embeddings": SEQ}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    others = {"rms_norm_eps": 1e-5, "attn_implementation": "eager", "tie_word_embeddings": False}
    return sizes | others | {"rope_parameters": rope, "num_key_value_heads": 2} | options


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
def test_llama(kv_heads, tied) -> None:
    section = shape(n_kv_heads=kv_heads, tie_embeddings=tied, rope_theta=500.0)
    options = {"num_key_value_heads": kv_heads, "tie_word_embeddings": tied}
    rope = {"rope_type": "default", "rope_theta": 500.0}
    peer = LlamaForCausalLM(LlamaConfig(**peer_shape(**options, rope_parameters=rope)))
    ours = Decoder(DecoderConfig(**section))
    assert_equal_models(ours, peer, llama_tensors)


def test_qk_norm_is_that_of_qwen3() -> None:
    ours = Decoder(DecoderConfig(**shape(n_kv_heads=2, qk_norm=True)))
    peer = Qwen3ForCausalLM(Qwen3Config(**peer_shape(head_dim=DIM // HEADS)))
    assert_equal_models(ours, peer, lambda model, pick: llama_tensors(model, pick, qk_norm=True))


@pytest.mark.parametrize("kernel", ["grouped", "loop"])
def test_mixtral(kernel) -> None:
    moe = MoEConfig(num_experts=6, top_k=2, kernel=kernel)
    ours = Decoder(DecoderConfig(**shape(n_kv_heads=2, moe=moe)))
    options = {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None}
    peer = MixtralForCausalLM(MixtralConfig(**peer_shape(**options)))
    assert_equal_models(ours, peer, moe_tensors)


@pytest.mark.parametrize("normalised", [True, False])
def test_qwen3_moe(normalised) -> None:
    """Experts of another width in every second layer; three a token."""
    options = {"num_experts": 8, "norm_topk_prob": normalised}
    moe = MoEConfig(top_k=3, ffn_hidden_dim=24, frequency=2, **options)
    ours = Decoder(DecoderConfig(**shape(n_kv_heads=2, qk_norm=True, moe=moe)))
    options |= {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "decoder_sparse_step": 2}
    peer = Qwen3MoeForCausalLM(Qwen3MoeConfig(**peer_shape(head_dim=DIM // HEADS, **options)))
    names = [type(block.feed_forward).__name__ for block in ours.blocks.values()]
    assert names == ["FeedForward", "MoE", "FeedForward"]
    assert_equal_models(ours, peer, lambda model, pick: moe_tensors(model, pick, qk_norm=True))


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_gpt2(rate: float) -> None:
    """With dropout the peer is given our masks, in its own places."""
    options = {"position": "learned", "norm_type": "layernorm", "activation": "gelu_tanh"}
    options |= {"bias": True, "gated_mlp": False, "tie_embeddings": True}
    ours = Decoder(DecoderConfig(**shape(**options, dropout=rate)))
    sizes = {"n_embd": DIM, "n_layer": LAYERS, "n_head": HEADS, "n_inner": FFN}
    sizes |= {"vocab_size": VOCAB, "n_positions": SEQ}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    peer = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, attn_implementation="eager"))
    if rate:
        ours.hidden = partial(ours.hidden, noise=noise_of(0, range(2), SEQ))  # type: ignore
        peer.transformer.drop = ours.dropout
        for block, layer in zip(ours.blocks.values(), peer.transformer.h, strict=True):
            layer.attn.resid_dropout = block.attention_dropout
            layer.mlp.dropout = block.feed_forward_dropout
    assert_equal_models(ours, peer, gpt2_tensors)
