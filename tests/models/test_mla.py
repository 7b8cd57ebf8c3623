"""Multi-head latent attention against that of transformers' DeepSeek-V2 and V3."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest
import torch
from test_rope import parameters
from test_transformers_parity import VOCAB, Pick, assert_equal_models, randomise
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
)
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3

import forge
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mla import MLA as MLAConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.models.decoder import Decoder
from forge.models.mla import MLA
from forge.models.rope import RotaryTable

V2 = (modeling_deepseek_v2, "DeepseekV2", DeepseekV2Config)
V3 = (modeling_deepseek_v3, "DeepseekV3", DeepseekV3Config)
SEQ, DIM, HEADS = 24, 32, 4
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}
YARN = {"rope_type": "yarn", "rope_factor": 4, "original_max_position_embeddings": 12}
NAMES = {
    "q_proj": "wq",
    "q_a_proj": "wq_a",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "wkv_b",
    "o_proj": "wo",
}


def section(q_lora_rank: int = 12, *, naive: bool = False, **model: Any) -> DecoderConfig:
    mixer = MLAConfig(q_lora_rank=q_lora_rank, mla_naive_kvcache=naive, **WIDTHS)
    sizes = {"dim": DIM, "n_heads": HEADS, "max_seq_len": SEQ, "norm_eps": 1e-6}
    return DecoderConfig(**(sizes | YARN | model), mixer=mixer)


def peer_config(kind: Any, chosen: DecoderConfig, **options: Any) -> Any:
    both = {"mscale": chosen.mscale, "mscale_all_dim": chosen.mscale}
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "max_position_embeddings": SEQ}
    sizes |= WIDTHS | {"q_lora_rank": chosen.mixer.q_lora_rank or None}
    sizes |= {"num_key_value_heads": HEADS, "rope_parameters": parameters(chosen, **both)}
    return kind(**sizes, attn_implementation="sdpa", **options)


def tensors_of(attention: nn.Module, pick: Pick) -> dict[str, Tensor]:
    """The peer's weights (or gradients) under our names, each rotated pair (2i, 2i+1) in our places
    (i, i + width/2).
    """
    width, found = WIDTHS["qk_rope_head_dim"], {}
    places = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    for name, module in attention.named_children():
        rows = pick(module.weight)
        heads = {"wq": HEADS, "wq_b": HEADS, "wkv_a": 1}.get(NAMES[name], 0)
        if heads:
            each = rows.unflatten(0, (heads, -1))
            still = each.shape[1] - width
            rows = torch.cat((each[:, :still], each[:, still:][:, places]), 1).flatten(0, 1)
        found[f"{NAMES[name]}.weight"] = rows
    return found


def in_fp64(module: ModuleType, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers compute in fp64 what it casts to fp32: norms, and V2's rotation."""
    norm = getattr(module, f"{prefix}RMSNorm")
    for owner, name in ((norm, "forward"), (module, "apply_rotary_emb")):
        if hasattr(owner, name):
            source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
            source = source.replace("torch.float32", "torch.float64")
            source = source.replace(".float()", ".double()")
            made: dict[str, Any] = {}
            exec(source, vars(module), made)
            monkeypatch.setattr(owner, name, made[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("q_lora_rank", [12, 0])
@pytest.mark.parametrize("peers", [V2, V3], ids=["V2", "V3"])
def test_outputs_and_gradients_are_those_of_deepseek(
    peers, q_lora_rank, dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, prefix, config = peers
    chosen = section(q_lora_rank)
    if dtype == torch.float64:
        in_fp64(module, prefix, monkeypatch)
    peer = getattr(module, f"{prefix}Attention")(peer_config(config, chosen), 0).to(dtype)
    randomise(peer)
    ours = MLA(chosen).to(dtype)
    ours.load_state_dict(tensors_of(peer, lambda parameter: parameter.detach()))
    x, to = torch.randn(2, 2, SEQ, DIM, dtype=dtype, generator=torch.Generator().manual_seed(1))
    rotation = RotaryTable(chosen)(0, SEQ)
    width = WIDTHS["qk_rope_head_dim"] // 2
    cos, sin = (table[:, 0, width:] for table in rotation)
    both = (
        torch.complex(cos, sin)
        if prefix == "DeepseekV2"
        else [torch.cat((each, each), -1).to(dtype) for each in (cos, sin)]
    )
    bound = 1e-5 if dtype == torch.float32 else 1e-10
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    y = ours(inputs[0], rotation)
    positions = both[None] if prefix == "DeepseekV2" else [each[None] for each in both]
    expected, _ = peer(inputs[1], position_embeddings=positions, attention_mask=None)
    assert expected.std() > 0.1
    torch.testing.assert_close(y, expected, rtol=bound, atol=bound)
    for each in (y, expected):
        (each * to).sum().backward()
    gradients = tensors_of(peer, lambda parameter: parameter.grad) | {"x": inputs[1].grad}
    for name, parameter in [*ours.named_parameters(), ("x", inputs[0])]:
        assert (parameter.grad - gradients[name]).norm() <= bound * gradients[name].norm(), name


def test_the_table_is_that_of_deepseek() -> None:
    chosen = section()
    peer = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(peer_config(DeepseekV3Config, chosen))
    cos, sin = peer(torch.zeros(1), torch.arange(SEQ)[None])
    ours, half = RotaryTable(chosen), WIDTHS["qk_rope_head_dim"] // 2
    assert torch.equal(ours.cos[:, 0], cos[0])
    assert torch.equal(ours.sin[:, 0, half:], sin[0, :, half:])


def model_tensors(peer: nn.Module, pick: Pick) -> dict[str, Tensor]:
    """Those of a whole model; of one with a selection bias that too."""
    body, tensors = peer.model, {"output.weight": pick(peer.lm_head.weight)}
    tensors |= {"embedding.weight": pick(body.embed_tokens.weight)}
    tensors |= {"norm.weight": pick(body.norm.weight)}
    for i, layer in enumerate(body.layers):
        mlp, names = layer.mlp, {each: f"w_{each}" for each in ("gate", "up", "down")}
        found = {f"attention.{k}": v for k, v in tensors_of(layer.self_attn, pick).items()}
        found["attention_norm.weight"] = pick(layer.input_layernorm.weight)
        found["feed_forward_norm.weight"] = pick(layer.post_attention_layernorm.weight)
        dense, place = mlp, "feed_forward"
        if hasattr(mlp, "experts"):
            gate, up = pick(mlp.experts.gate_up_proj).chunk(2, dim=1)
            experts = {"w_gate": gate, "w_up": up, "w_down": pick(mlp.experts.down_proj)}
            found |= {f"{place}.experts.{name}": each for name, each in experts.items()}
            bias = getattr(mlp.gate, "e_score_correction_bias", torch.zeros(len(gate)))
            found[f"{place}.router.selection_bias"] = bias
            found[f"{place}.router.weight"] = pick(mlp.gate.weight)
            dense, place = mlp.shared_experts, f"{place}.shared"
        for theirs, name in names.items():
            found[f"{place}.{name}.weight"] = pick(getattr(dense, f"{theirs}_proj").weight)
        tensors |= {f"blocks.{i}.{name}": each for name, each in found.items()}
    return tensors


EXPERTS = {"num_experts": 8, "top_k": 3, "ffn_hidden_dim": 24, "shared_experts": 2}
EXPERTS |= {"routed_scaling_factor": 1.5, "first_num_dense_layers": 1, "n_routing_groups": 4}
EXPERTS |= {"topk_routing_group": 2}
THEIRS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
THEIRS |= {"n_shared_experts": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
THEIRS |= {"n_group": 4, "topk_group": 2, "num_hidden_layers": 3, "intermediate_size": 80}
THEIRS |= {"vocab_size": VOCAB}
V2_ROUTER = {"router": "softmax_topk", "norm_topk_prob": False}


@pytest.mark.parametrize("version", [2, 3])
def test_a_whole_deepseek(version: int) -> None:
    """A dense layer and two of experts, chosen by groups; V3 with a selection bias."""
    router = {"router": "sigmoid_topk"} if version == 3 else V2_ROUTER
    sizes = {"n_layers": 3, "ffn_hidden_dim": 80, "vocab_size": VOCAB, "max_seq_len": 48}
    chosen = section(12 if version == 3 else 0, moe=MoEConfig(**EXPERTS, **router), **sizes)
    if version == 3:
        peer = DeepseekV3ForCausalLM(peer_config(DeepseekV3Config, chosen, **THEIRS))
        for layer in peer.model.layers[1:]:
            layer.mlp.gate.e_score_correction_bias.normal_(std=0.1)
    else:
        greedy = {"topk_method": "group_limited_greedy"}
        peer = DeepseekV2ForCausalLM(peer_config(DeepseekV2Config, chosen, **THEIRS, **greedy))
    assert_equal_models(Decoder(chosen), peer, model_tensors)


PUBLISHED = {
    "deepseek2_16b": DeepseekV2Config(
        vocab_size=102400,
        hidden_size=2048,
        intermediate_size=10944,
        num_hidden_layers=27,
        num_attention_heads=16,
        q_lora_rank=None,
        n_routed_experts=64,
        n_shared_experts=2,
        moe_intermediate_size=1408,
        num_experts_per_tok=6,
        first_k_dense_replace=1,
    ),
    "deepseek3_671b": DeepseekV3Config(),
    "deepseek3_2_671b": DeepseekV32Config(),
    "kimi_k2": DeepseekV3Config(
        vocab_size=163840,
        num_attention_heads=64,
        num_key_value_heads=64,
        n_routed_experts=384,
        first_k_dense_replace=1,
    ),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_is_as_large_as_the_published_model(preset: str) -> None:
    config = PUBLISHED[preset]
    with torch.device("meta"):
        peer = AutoModelForCausalLM.from_config(config)
    size = sum(parameter.numel() for parameter in peer.parameters())
    assert forge.compose([f"model={preset}"]).model.num_params_estimate == size
