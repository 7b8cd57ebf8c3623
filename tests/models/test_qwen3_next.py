"""A whole Qwen3-Next, three gated delta nets for one attention, against that of transformers."""

from __future__ import annotations

from typing import Any

import test_gated_delta_net as delta
import torch
from test_transformers_parity import VOCAB, Pick, assert_equal_models
from torch import Tensor, nn
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.models.decoder import Decoder

SEQ, DIM, HEADS, KV_HEADS, HEAD = 48, delta.DIM, 4, 2, 8
EPS = 0.3
"""With the published 1e-6 rounding in fp32 moves logits by 1e-4, those of transformers too: the
norm of a narrow head that gives almost nothing is nearly a sign function.
"""
DELTA = {"schema": "gated_delta_net", "gdn_key_head_dim": delta.KEY, "gdn_chunk_size": 8}
DELTA |= {"gdn_value_head_dim": delta.VALUE, "gdn_num_key_heads": delta.KEY_HEADS}
DELTA |= {"gdn_num_value_heads": delta.HEADS}
EXPERTS = {"num_experts": 6, "top_k": 2, "ffn_hidden_dim": 24, "shared_experts": 1}
EXPERTS |= {"shared_hidden_dim": 20, "shared_expert_gate": True, "aux_loss_weight": 0.0}


def section() -> DecoderConfig:
    sizes: dict[str, Any] = {"dim": DIM, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "n_layers": 4}
    sizes |= {"head_dim": HEAD, "vocab_size": VOCAB, "max_seq_len": SEQ, "rope_theta": 1e7}
    return DecoderConfig(
        norm_eps=EPS,
        norm_unit_offset=True,
        qk_norm=True,
        partial_rotary_factor=0.25,
        attention_output_gate=True,
        moe=MoEConfig(**EXPERTS),
        kinds={"delta": {"mixer": DELTA}},
        layers=["delta", "delta", "delta", "default"],
        **sizes,
    )


def peer_model() -> nn.Module:
    moe = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    moe |= {"shared_expert_intermediate_size": 20, "norm_topk_prob": True}
    heads = {"linear_num_key_heads": delta.KEY_HEADS, "linear_num_value_heads": delta.HEADS}
    heads |= {"linear_key_head_dim": delta.KEY, "linear_value_head_dim": delta.VALUE}
    chosen = Qwen3NextConfig(
        vocab_size=VOCAB,
        hidden_size=DIM,
        num_hidden_layers=4,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        max_position_embeddings=SEQ,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        attn_implementation="sdpa",
        **moe,
        **heads,
    )
    return Qwen3NextForCausalLM(chosen)


def tensors_of(peer: nn.Module, pick: Pick) -> dict[str, Tensor]:
    body: Any = peer.model
    found = {
        "embedding.weight": pick(body.embed_tokens.weight),
        "norm.weight": pick(body.norm.weight),
    }
    found["output.weight"] = pick(peer.lm_head.weight)
    for number, layer in enumerate(body.layers):
        mlp, own = layer.mlp, {}
        if layer.block_type == "linear_attention":
            own = {
                f"attention.{n}": t for n, t in delta.tensors_of(layer.linear_attn, pick).items()
            }
        else:
            names = {f"{n}_proj": f"w{n}" for n in "qkvo"} | {
                f"{n}_norm": f"{n}_norm" for n in "qk"
            }
            for theirs, ours in names.items():
                own[f"attention.{ours}.weight"] = pick(getattr(layer.self_attn, theirs).weight)
        own["attention_norm.weight"] = pick(layer.input_layernorm.weight)
        own["feed_forward_norm.weight"] = pick(layer.post_attention_layernorm.weight)
        gate, up = pick(mlp.experts.gate_up_proj).chunk(2, 1)
        experts = {"experts.w_gate": gate, "experts.w_up": up}
        experts |= {"experts.w_down": pick(mlp.experts.down_proj)}
        experts |= {"router.weight": pick(mlp.gate.weight), "router.selection_bias": torch.zeros(6)}
        experts["shared_gate.weight"] = pick(mlp.shared_expert_gate.weight)
        for name in ("gate", "up", "down"):
            weight = getattr(mlp.shared_expert, f"{name}_proj").weight
            experts[f"shared.w_{name}.weight"] = pick(weight)
        own |= {f"feed_forward.{name}": each for name, each in experts.items()}
        found |= {f"blocks.{number}.{name}": each for name, each in own.items()}
    return found


def test_logits_and_gradients_are_those_of_transformers() -> None:
    assert_equal_models(Decoder(section()), peer_model(), tensors_of)


@torch.no_grad()
def test_a_greedy_continuation_is_that_of_transformers(small_decoder) -> None:
    """With the states of its layers, and reading all again for each token."""
    ours, peer = Decoder(section()), peer_model().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in peer.parameters():
        parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    ours.load_state_dict(tensors_of(peer, lambda parameter: parameter.detach()))
    tokens = torch.randint(VOCAB, (2, 9), generator=generator)
    how = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    expected = peer.generate(tokens, **how)  # type: ignore[operator]
    cache, fed, found = ours.new_cache(), tokens, tokens
    again = tokens
    for _ in range(30):
        fed = ours(fed, cache=cache)[:, -1:].argmax(-1)
        found = torch.cat((found, fed), 1)
        again = torch.cat((again, ours(again)[:, -1:].argmax(-1)), 1)
    assert len(set(expected[0, 9:].tolist())) > 5
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)
