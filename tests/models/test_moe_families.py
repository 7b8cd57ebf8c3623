"""Layers of experts as families have them, against transformers' own: outputs and gradients, of
random fp32 weights, by every kernel; and what is new of them against its formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from test_transformers_parity import randomise
from torch import Tensor, nn
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    GptOssConfig,
    Llama4TextConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.llama4.modeling_llama4 import Llama4TextMoe
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.models.feed_forward import FeedForward
from forge.models.moe import MoE

DIM, HIDDEN, EXPERTS, TOP_K, BATCH, SEQ = 32, 24, 8, 3, 3, 16
Pick = Callable[[nn.Parameter], Tensor]


class Family(NamedTuple):
    """theirs: their layer, made of their config. model, moe: our options of the same. interleaved:
    whether the columns of gate and up alternate. transposed: whether the matrices of experts are
    [in, out].
    """

    theirs: Callable[[], nn.Module]
    model: dict[str, Any]
    moe: dict[str, Any]
    interleaved: bool = False
    transposed: bool = False


def theirs(kind: type[nn.Module], config: type, **options: Any) -> Callable[[], nn.Module]:
    sizes = {"hidden_size": DIM, "num_experts_per_tok": TOP_K, "norm_topk_prob": True}
    return lambda: kind(config(**(sizes | options)))


SHARED = {"shared_experts": 1, "shared_hidden_dim": 20, "shared_expert_gate": True}
OF_QWEN = {"num_experts": EXPERTS, "moe_intermediate_size": HIDDEN}
OF_QWEN_SHARED = OF_QWEN | {"shared_expert_intermediate_size": 20}
OF_DEEPSEEK = {"n_routed_experts": EXPERTS, "moe_intermediate_size": HIDDEN, "n_shared_experts": 2}
OF_DEEPSEEK |= {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}
OURS = {"shared_experts": 2, "n_routing_groups": 4, "topk_routing_group": 2}
OURS |= {"routed_scaling_factor": 1.5}
LOCAL = {"intermediate_size": HIDDEN, "num_local_experts": EXPERTS}
FAMILIES = {
    "mixtral": Family(theirs(MixtralSparseMoeBlock, MixtralConfig, **LOCAL), {}, {}),
    "qwen2 moe": Family(
        theirs(Qwen2MoeSparseMoeBlock, Qwen2MoeConfig, **OF_QWEN_SHARED, norm_topk_prob=False),
        {},
        SHARED | {"norm_topk_prob": False},
    ),
    "qwen3 moe": Family(theirs(Qwen3MoeSparseMoeBlock, Qwen3MoeConfig, **OF_QWEN), {}, {}),
    "qwen3-next": Family(
        theirs(Qwen3NextSparseMoeBlock, Qwen3NextConfig, **OF_QWEN_SHARED), {}, SHARED
    ),
    "gpt-oss": Family(
        theirs(GptOssMLP, GptOssConfig, **LOCAL, swiglu_limit=0.5),
        {
            "activation": "quick_gelu",
            "gated_mlp": True,
            "mlp_activations_limit": 0.5,
            "mlp_up_offset": 1.0,
        },
        {"router_bias": True, "expert_bias": True},
        interleaved=True,
        transposed=True,
    ),
    "llama 4": Family(
        theirs(Llama4TextMoe, Llama4TextConfig, **LOCAL, num_experts_per_tok=1),
        {},
        {
            "top_k": 1,
            "router": "sigmoid_topk",
            "norm_topk_prob": False,
            "score_on_input": True,
            "shared_experts": 1,
        },
        transposed=True,
    ),
    "llama 4 of three": Family(
        theirs(Llama4TextMoe, Llama4TextConfig, **LOCAL),
        {},
        {
            "router": "sigmoid_topk",
            "norm_topk_prob": False,
            "score_on_input": True,
            "shared_experts": 1,
        },
        transposed=True,
    ),
    "deepseek 2": Family(
        theirs(DeepseekV2Moe, DeepseekV2Config, **OF_DEEPSEEK, topk_method="group_limited_greedy"),
        {},
        OURS | {"norm_topk_prob": False, "group_score": "max"},
    ),
    "deepseek 3": Family(
        theirs(DeepseekV3MoE, DeepseekV3Config, **OF_DEEPSEEK),
        {},
        OURS | {"router": "sigmoid_topk", "group_score": "top2_sum"},
    ),
}


def section(model: dict[str, Any] | None = None, **moe: Any) -> DecoderConfig:
    options = {"num_experts": EXPERTS, "top_k": TOP_K, "ffn_hidden_dim": HIDDEN}
    experts = MoEConfig(**(options | {"aux_loss_weight": 0.0} | moe))
    return DecoderConfig(dim=DIM, n_heads=4, ffn_hidden_dim=48, **(model or {}), moe=experts)


def tensors_of(peer: Any, pick: Pick, family: Family) -> dict[str, Tensor]:
    """Their weights, or gradients, under our names."""
    router = peer.router if hasattr(peer, "router") else peer.gate
    found = {f"router.{name}": pick(each) for name, each in router.named_parameters()}
    bias = getattr(router, "e_score_correction_bias", torch.zeros(EXPERTS))
    found["router.selection_bias"] = bias
    for kind in ("", "_bias"):
        both = getattr(peer.experts, f"gate_up_proj{kind}", None)
        if both is None:
            continue
        both, down = pick(both), pick(getattr(peer.experts, f"down_proj{kind}"))
        if family.transposed and not kind:
            both, down = both.transpose(1, 2), down.transpose(1, 2)
        parts = (both[:, ::2], both[:, 1::2]) if family.interleaved else both.chunk(2, dim=1)
        for name, part in zip(("w_gate", "w_up", "w_down"), (*parts, down), strict=True):
            found[f"experts.{name}{kind}"] = part
    for name in ("shared_expert", "shared_experts"):
        for each in ("gate", "up", "down") if hasattr(peer, name) else ():
            weight = getattr(getattr(peer, name), f"{each}_proj").weight
            found[f"shared.w_{each}.weight"] = pick(weight)
    if hasattr(peer, "shared_expert_gate"):
        found["shared_gate.weight"] = pick(peer.shared_expert_gate.weight)
    return found


def output_of(layer: nn.Module, x: Tensor) -> Tensor:
    made = layer(x)
    return (made[0] if isinstance(made, tuple) else made).view_as(x)


@pytest.mark.parametrize(
    "how",
    [{"kernel": "loop"}, {"kernel": "grouped"}, {"capacity_factor": float(EXPERTS)}],
    ids=["loop", "grouped", "capacity"],
)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_of_experts_is_that_of_transformers(name: str, how: dict[str, Any]) -> None:
    family = FAMILIES[name]
    peer, ours = family.theirs(), MoE(section(family.model, **family.moe, **how))
    randomise(peer)
    generator = torch.Generator().manual_seed(1)
    for buffer_name, buffer in peer.named_buffers():
        assert buffer_name.endswith("e_score_correction_bias")
        buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))
    ours.load_state_dict(tensors_of(peer, lambda parameter: parameter.detach(), family))
    x, wanted = (torch.randn(BATCH, SEQ, DIM, generator=generator) for _ in range(2))
    entering = {"theirs": x.clone().requires_grad_(), "ours": x.clone().requires_grad_()}
    expected, y = output_of(peer, entering["theirs"]), output_of(ours, entering["ours"])
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for each in (expected, y):
        (each * wanted).sum().backward()
    gradients = tensors_of(peer, lambda parameter: parameter.grad, family)
    gradients["x"] = entering["theirs"].grad
    found = dict(ours.named_parameters()) | {"x": entering["ours"]}
    for key, parameter in found.items():
        reference = gradients[key]
        assert reference.norm() > 1e-3, key
        assert (parameter.grad - reference).norm() <= 1e-5 * reference.norm(), key


def test_the_limits_of_gpt_oss_are_met_in_that_test() -> None:
    """Else it would compare nothing of them: values beyond them either way."""
    family = FAMILIES["gpt-oss"]
    moe = MoE(section(family.model, **family.moe))
    randomise(moe)
    x = torch.randn(64, DIM, generator=torch.Generator().manual_seed(1))
    up = x @ moe.experts.w_up[0].T
    assert (up.abs() > 0.5).float().mean() > 0.2


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        (
            {"activation": "quick_gelu", "gated_mlp": True, "mlp_activations_limit": 0.3},
            lambda up, gate: (
                gate.clamp(max=0.3)
                / (1 + (-1.702 * gate.clamp(max=0.3)).exp())
                * up.clamp(-0.3, 0.3)
            ),
        ),
        ({"mlp_up_offset": 1.0}, lambda up, gate: gate / (1 + (-gate).exp()) * (up + 1)),
        (
            {"activation": "relu2", "mlp_activations_limit": 0.3},
            lambda up, gate: up.clamp(0, 0.3) ** 2,
        ),
    ],
    ids=["quick_gelu", "offset", "relu2"],
)
def test_a_dense_layer_has_the_same_activations(options: dict[str, Any], formula: Any) -> None:
    made = FeedForward(section(options)).double()
    randomise(made)
    x = torch.randn(5, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    up = x @ made.w_up.weight.T
    gate = None if made.w_gate is None else x @ made.w_gate.weight.T
    expected = formula(up, gate) @ made.w_down.weight.T
    torch.testing.assert_close(made(x), expected, rtol=1e-12, atol=1e-12)


def test_a_layer_beside_the_experts_is_added() -> None:
    """With the width of the model's layers, its biases, and experts that are there without it."""
    with_biases = {"mlp_bias": True}
    both = MoE(section(with_biases, beside_dense=True)).double()
    randomise(both)
    alone, dense = MoE(section(with_biases)).double(), FeedForward(section(with_biases)).double()
    state = both.state_dict()
    taken = {k.removeprefix("dense."): v for k, v in state.items() if k.startswith("dense.")}
    dense.load_state_dict(taken)
    alone.load_state_dict({k: v for k, v in state.items() if not k.startswith("dense.")})
    assert dense.w_up.weight.shape == (48, DIM)
    x = torch.randn(BATCH, SEQ, DIM, dtype=torch.float64)
    torch.testing.assert_close(both(x), alone(x) + dense(x), rtol=1e-12, atol=1e-12)


def test_a_rank_without_any_token_has_gradients_of_biases_too() -> None:
    for kernel in ("loop", "grouped"):
        experts = MoE(section(expert_bias=True, kernel=kernel)).experts
        y = experts(torch.empty(0, DIM, requires_grad=True), torch.zeros(8, dtype=torch.int64))
        y.sum().backward()
        gradients = [weight.grad for weight in experts.parameters()]
        assert len(gradients) == 6
        assert all(each is not None and not each.any() for each in gradients)


def test_llama_4_maverick_can_be_said() -> None:
    """Experts in every second layer, dense ones of twice their width in the others."""
    chosen = section({"n_layers": 4}, frequency=2, shared_experts=1)
    shapes = {one.name: one.shape for one in chosen.tensors()}
    assert shapes["blocks.0.feed_forward.w_up.weight"] == (48, DIM)
    assert shapes["blocks.1.feed_forward.experts.w_up"] == (EXPERTS, HIDDEN, DIM)
    assert shapes["blocks.1.feed_forward.shared.w_up.weight"] == (HIDDEN, DIM)
    config = Llama4TextConfig(num_hidden_layers=4, interleave_moe_layer_step=2)
    assert config.moe_layers == [1, 3]
